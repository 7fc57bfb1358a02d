# pytorch#130394: an output made by empty_strided with gaps.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x):
    r = torch.empty_strided(x.size(), x.stride())
    r[:] = x + x
    return r


def make():
    torch.manual_seed(0)
    return f, (torch.as_strided(torch.randn(16, 16), (16, 8), (16, 1)),)
