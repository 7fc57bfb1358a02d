# pytorch#133512: add_ on a transposed tensor, then as_strided.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x):
    y = x.t() * 1.0
    y.add_(1)
    return torch.as_strided(y, (4, 3), (3, 1))


def make():
    return f, (torch.arange(12.0).reshape(3, 4),)
