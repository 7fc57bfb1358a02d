# pytorch#111133: index_add_ on a permuted view of the input.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x, a, i):
    y = x.permute(1, 0)
    y.index_add_(0, i, a)
    return y


def make():
    return f, (torch.ones(3, 5), torch.arange(1.0, 10).reshape(3, 3), torch.tensor([0, 4, 2]))
