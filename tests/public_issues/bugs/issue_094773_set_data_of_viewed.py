# pytorch#94773: x.data is replaced while a view of x lives.
# A bug: eager returns the view; compiled raises.

import torch

EXPECT = ("runtime_error", "compile_error")


def f(x):
    z = x[:]
    x.data = torch.ones(3, 4)
    return z


def make():
    torch.manual_seed(0)
    return f, (torch.randn(2, 3),)
