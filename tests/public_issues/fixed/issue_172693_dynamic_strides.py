# pytorch#172693: dynamic shapes, and strided inputs in later calls.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)

DYNAMIC = True


def f(x):
    y = x.transpose(0, 1)
    return (y + 1).reshape(-1), y.reshape(-1) * 2


def make():
    return f, (torch.arange(30.0).reshape(5, 6),)


CALLS = [(torch.arange(60.0).reshape(6, 10)[:, ::2],), (torch.arange(14.0).reshape(7, 2),)]
