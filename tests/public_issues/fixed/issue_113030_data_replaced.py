# pytorch#113030: x.data = y, then x + 1.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x, y):
    x.data = y
    return x + 1


def make():
    torch.manual_seed(0)
    return f, (torch.rand(6), torch.rand(6))
