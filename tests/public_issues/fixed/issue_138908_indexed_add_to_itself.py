# pytorch#138908: y[x] += y[x].
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x, y):
    x = x + 10
    y[x] += y[x]


DYNAMIC = True


def make():
    torch.manual_seed(0)
    return f, (torch.full((1, 2), -10), torch.randn(2, 32))
