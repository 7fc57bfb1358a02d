# pytorch#197085: random.shuffle inside the program.
# No bug any more; right in torch 2.13.

import random

import torch

EXPECT = ("equal",)


def f(x):
    order = list(range(8))
    random.shuffle(order)
    return x[order]


def make():
    return f, (torch.arange(8.0),)


CALLS = [(torch.arange(8.0),), (torch.arange(8.0),)]
