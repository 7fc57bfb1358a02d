import torch
from torch import nn

BACKWARD = True


class Model(nn.Module):
    def forward(self, q, k, v):
        q = q.permute(0, 2, 1, 3)
        k = k.permute(0, 2, 1, 3)
        v = v.permute(0, 2, 1, 3)
        scores = (q @ k.transpose(-2, -1)) / 4.0
        weights = scores.softmax(-1)
        return weights @ v


def make():
    torch.manual_seed(8056)
    q = torch.randn(3, 13, 6, 16, requires_grad=True)
    k = torch.randn(3, 13, 6, 16, requires_grad=True)
    v = torch.randn(3, 13, 6, 16, requires_grad=True)
    return Model().train(), (q, k, v)
