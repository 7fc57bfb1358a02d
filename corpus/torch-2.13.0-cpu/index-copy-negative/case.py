import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, q, k, v):
        q = q.permute(0, 2, 1, 3)
        k = k.permute(0, 2, 1, 3)
        v = v.permute(0, 2, 1, 3)
        scores = q @ k.transpose(-2, -1)
        weights = scores.float().softmax(-1).type_as(q)
        return weights @ v


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, q, k, v):
        x = self.attention(q, k, v)
        x = torch.index_copy(x, -1, torch.tensor([-2], device=x.device), x[..., :1])
        return x


def make():
    torch.manual_seed(0)
    q = torch.randn(1, 2, 1, 2)
    k = torch.randn(1, 2, 1, 2)
    v = torch.randn(1, 2, 1, 2)
    return Model().eval(), (q, k, v)
