# pytorch#197431: as_strided over a slice of a repeated tensor.
# A bug: eager reads the memory of the base; the compiled result reaches beyond the end of a smaller buffer.

import torch

EXPECT = ("miscompile",)


def f(x):
    full = x.repeat((3, 2))
    return torch.as_strided(full[:, ::2], (3, 2), full.stride())


def make():
    torch.manual_seed(0)
    return f, (torch.randn(1, 1),)
