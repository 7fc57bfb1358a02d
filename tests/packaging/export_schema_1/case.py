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
        x = torch.addmm(x.new_zeros(3, 1), x.new_ones(1, 2), x.new_ones(2, 1)).sum() + x
        return x


def make():
    torch.manual_seed(0)
    q = torch.randn(1, 1, 2, 2)
    k = torch.randn(1, 1, 2, 2)
    v = torch.randn(1, 1, 2, 2)
    return Model().eval(), (q, k, v)
