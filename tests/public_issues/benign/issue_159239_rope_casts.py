# pytorch#159239: rotary embedding with casts to bfloat16 of some terms.
# No bug: compiled leaves the casts out.

import torch

EXPECT = ("rounding", "precision_casts")


def rot(x):
    a, b = x[..., :8], x[..., 8:]
    return torch.cat((-b, a), -1)


def f(q, cos, sin):
    q = q.to(torch.bfloat16)
    return (q * cos).to(torch.bfloat16) + (rot(q) * sin).to(torch.bfloat16)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(1, 4, 7, 16), torch.randn(1, 1, 7, 16).bfloat16(), torch.randn(1, 1, 7, 16).bfloat16())
