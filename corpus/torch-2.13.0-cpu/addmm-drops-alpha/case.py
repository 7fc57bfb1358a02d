import torch
from torch import nn
from torch.nn import functional as F

OPTIONS = {
    "pre_grad_fusion_options": {
        "normalization_pass": {},
        "remove_split_with_size_one_pass": {},
    },
}


class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class Convolution2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(16, 16, (3, 1), padding=(1, 0), bias=True)
        self.shortcut = nn.Conv2d(16, 16, 1)

    def forward(self, x):
        image = x.transpose(1, 2)[..., None]
        out = self.convolution(image)
        out = out + self.shortcut(image)
        out = F.relu(out)
        return out.squeeze(-1).transpose(1, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = LayerNorm()
        self.attention_dropout = nn.Dropout(0.1)
        self.attention = Convolution2d()
        self.feed_forward_norm = LayerNorm()
        self.feed_forward_dropout = nn.Dropout(0.1)
        self.feed_forward = nn.Sequential(
            nn.Linear(16, 64),
            nn.GELU(approximate="tanh"),
            nn.Linear(64, 16),
        )

    def forward(self, x):
        x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
        return x + self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        x = self.block(x)
        flat = x.reshape(-1, 16)
        x = torch.add(flat, flat @ (flat.t() @ flat), alpha=0.01).view(x.shape)
        return x


def make():
    torch.manual_seed(521055)
    x = torch.randn(4, 13, 16)
    return Model().eval(), (x,)
