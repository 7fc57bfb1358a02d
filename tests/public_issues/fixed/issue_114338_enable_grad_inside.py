# pytorch#114338: enable_grad inside no_grad.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x):
    with torch.enable_grad():
        o = x + 1
    return o, x + 1, o.requires_grad


def make():
    return f, (torch.zeros(10, requires_grad=True),)
