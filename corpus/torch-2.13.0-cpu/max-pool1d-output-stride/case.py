import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, q, k, v):
        x = self.attention(q, k, v)
        rows = x.flatten(0, -3).transpose(1, 2)
        rows = F.max_pool1d(rows, 3, 1, 1)
        x = rows.transpose(1, 2).reshape(x.shape).to(x.dtype)
        return x


CALLS = [
    (
        torch.randn(3, 8, 18, 16, dtype=torch.bfloat16),
        torch.randn(3, 8, 18, 16, dtype=torch.bfloat16),
        torch.randn(3, 8, 18, 16, dtype=torch.bfloat16),
    ),
]


def make():
    torch.manual_seed(305227)
    q = torch.randn(2, 8, 16, 16, dtype=torch.bfloat16)
    k = torch.randn(2, 8, 16, 16, dtype=torch.bfloat16)
    v = torch.randn(2, 8, 16, 16, dtype=torch.bfloat16)
    return Model().to(torch.bfloat16).eval(), (q, k, v)
