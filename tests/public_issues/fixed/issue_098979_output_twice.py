# pytorch#98979: a tensor, itself again and a view of it are returned, and the caller writes into the first.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x):
    y = x * 2
    return y, y, y.view(-1)


def make():
    return f, (torch.arange(6.0).reshape(2, 3),)


def run(model, inputs):
    a, b, c = model(*inputs)
    a.add_(10)
    return a, b, c
