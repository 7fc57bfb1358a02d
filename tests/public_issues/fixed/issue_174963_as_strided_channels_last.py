# pytorch#174963: as_strided after roll of a channels_last tensor.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def f(x):
    x = torch.roll(x, shifts=-1, dims=0)
    return torch.as_strided(x, (5, 10), (4, 1), 0)


def make():
    return f, (torch.arange(100).reshape(2, 5, 2, 5).to(memory_format=torch.channels_last),)
