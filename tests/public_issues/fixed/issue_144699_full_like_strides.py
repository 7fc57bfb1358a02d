# pytorch#144699: full_like of a transposed tensor keeps its strides.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    torch.manual_seed(0)
    return (lambda x: torch.full_like(x, 3)), (torch.randn(4, 5, 6).transpose(1, -1),)
