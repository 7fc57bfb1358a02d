# pytorch#133512, variant: cumsum_ and clamp_ on a permuted tensor, then as_strided.
# A bug: the functional form of an in-place operator changes the layout, and as_strided reads by memory.

import torch

EXPECT = ("miscompile",)


def f(x):
    b = x.clone(memory_format=torch.preserve_format)
    b.cumsum_(0)
    b.clamp_(max=30)
    return torch.as_strided(b, (12,), (1,)), b


def make():
    return f, (torch.arange(12.0).reshape(3, 4).t(),)
