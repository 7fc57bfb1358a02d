import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v):
        q = q.permute(0, 2, 1, 3)
        k = k.permute(0, 2, 1, 3)
        v = v.permute(0, 2, 1, 3)
        q = q / 2.8284
        scores = q @ k.transpose(-2, -1)
        weights = scores.float().softmax(-1)
        weights = weights.to(torch.float16)
        v = v.to(weights.dtype)
        return weights @ v


def make():
    torch.manual_seed(2607)
    q = torch.randn(4, 12, 8, 8)
    k = torch.randn(4, 12, 8, 8)
    v = torch.randn(4, 12, 8, 8)
    return Model().eval(), (q, k, v)
