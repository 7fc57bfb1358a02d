# pytorch#139789, variant: a clone is returned and the input written.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x):
    y = x.clone()
    x.add_(1)
    return y


def make():
    return f, (torch.zeros(4),)


def run(model, inputs):
    y = model(*inputs)
    inputs[0].add_(5)
    return y
