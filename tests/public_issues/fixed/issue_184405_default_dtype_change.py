# pytorch#184405: the default dtype changes between calls.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x):
    return torch.ones(2) + 0, x * 1


def make():
    return f, (torch.zeros(2),)


def run(model, inputs):
    a = model(*inputs)
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        b = model(*inputs)
    finally:
        torch.set_default_dtype(old)
    return a, b
