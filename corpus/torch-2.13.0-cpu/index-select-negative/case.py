import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = (q @ k.transpose(-2, -1)) * 0.7071
        weights = scores.softmax(-1)
        return weights @ v


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, q, k, v):
        x = self.attention(q, k, v)
        x = torch.index_select(x, -1, torch.tensor([-1], device=x.device)) + x
        return x


def make():
    torch.manual_seed(9)
    q = torch.randn(1, 1, 2, 2)
    k = torch.randn(1, 1, 2, 2)
    v = torch.randn(1, 1, 2, 2)
    return Model().eval(), (q, k, v)
