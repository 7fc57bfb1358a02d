# pytorch#152425: a write through an expanded tensor.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def expand(x, n):
    a = x.expand((n,))
    a[-1] = 3
    return a


def f(t):
    return [expand(t[i], 2).clone() for i in range(2)]


def make():
    return f, (torch.arange(2),)
