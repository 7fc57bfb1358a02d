# pytorch#176854: detach_ is seen in requires_grad.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)

GRAD = "enabled"


def f(x):
    y = x * 2.0
    y.detach_()
    return y + 1.0, y.requires_grad


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, requires_grad=True),)
