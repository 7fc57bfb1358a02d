# pytorch#183769: select beyond the size of a dimension.
# No bug any more; right in torch 2.13: eager raises, and compiled too.

import torch

EXPECT = ("invalid",)


def f(x):
    base = x.unsqueeze(1)
    return torch.cat([torch.select(base, dim=1, index=0), torch.select(base, dim=1, index=1)], dim=-1)


def make():
    return f, (torch.arange(12, dtype=torch.float32).reshape(3, 4),)
