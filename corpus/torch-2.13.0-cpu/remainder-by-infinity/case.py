import torch
from torch import nn

BACKWARD = True
FULLGRAPH = True


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(1, 1, 1))

    def forward(self, q, k, v):
        q = q.permute(0, 2, 1, 3)
        k = k.permute(0, 2, 1, 3)
        v = v.permute(0, 2, 1, 3)
        scores = (q @ k.transpose(-2, -1)) * 0.3536
        sink = self.sink.to(scores.dtype).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)
        weights = weights[..., :-1]
        return weights @ v


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, q, k, v):
        x = self.attention(q, k, v)
        other = torch.full_like(x, float("inf"))
        made = torch.remainder(x, other)
        x = made.to(x.dtype)
        return x


def make():
    torch.manual_seed(577732)
    q = torch.randn(4, 6, 1, 8, requires_grad=True)
    k = torch.randn(4, 6, 1, 8, requires_grad=True)
    v = torch.randn(4, 6, 1, 8, requires_grad=True)
    return Model().train(), (q, k, v)
