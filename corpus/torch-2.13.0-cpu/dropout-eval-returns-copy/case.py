import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def forward(self, x):
        q = k = v = x.view(4, 5, 1, 4).permute(0, 2, 1, 3)
        scores = (q @ k.transpose(-2, -1)) * 0.5
        weights = scores.softmax(-1)
        out = weights @ v
        out = out.transpose(1, 2).reshape(4, 5, 4)
        return out


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return x + self.attention(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        x = x.masked_fill(x < 0, -0.5)
        x = self.block(x)
        same = F.dropout(x, 0.3, training=False)
        same.copy_(same.flip(-1))
        x = x * 2 + same
        return x


def make():
    torch.manual_seed(461334)
    x = torch.randn(4, 5, 4, dtype=torch.float16)
    return Model().to(torch.float16).eval(), (x,)
