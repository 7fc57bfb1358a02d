# pytorch#118959: fmin, entr and prod.
# No bug: the report's own script changed the input between its two runs.

import torch

EXPECT = ("rounding", "equal")


def f(x):
    return torch.fmin(x, torch.full_like(x, 0.5)), torch.special.entr(x), x.prod(0)


def make():
    torch.manual_seed(0)
    return f, (torch.rand(6, 9),)
