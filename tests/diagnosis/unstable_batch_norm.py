"""A block whose gradients hang on rounding, but for those of a batch norm that eager mode gets wrong."""

import torch
from torch import nn
from torch.nn import functional as F

BACKWARD = True


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Convolution2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(64, 64, (3, 1), padding=(1, 0), bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.shortcut = nn.Conv2d(64, 64, 1)

    def forward(self, x):
        image = x.transpose(1, 2)[..., None]
        out = self.convolution(image)
        out = self.norm(out)
        out = out + self.shortcut(image)
        out = F.gelu(out)
        return out.squeeze(-1).transpose(1, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = RMSNorm()
        self.attention_after = RMSNorm()
        self.attention = Convolution2d()
        self.feed_forward_norm = RMSNorm()
        self.feed_forward_after = RMSNorm()
        self.feed_forward = nn.Sequential(
            nn.Linear(64, 256),
            nn.GELU(approximate="tanh"),
            nn.Linear(256, 64),
        )

    def forward(self, x):
        branch = self.attention(self.attention_norm(x))
        x = x + self.attention_after(branch)
        branch = self.feed_forward(self.feed_forward_norm(x))
        return x + self.feed_forward_after(branch)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        x = self.block(x)
        b = x % -2.0
        return torch.ops.aten._safe_softmax.default(b, dim=1)


def make():
    torch.manual_seed(503058)
    x = torch.randn(3, 13, 64, dtype=torch.float16, requires_grad=True)
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(torch.float16).train(), (x,)
