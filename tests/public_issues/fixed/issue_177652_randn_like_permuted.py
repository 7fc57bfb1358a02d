# pytorch#177652: randn_like of a permuted tensor.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    return (lambda x: torch.randn_like(x) + x), (torch.zeros(8, 5).permute(1, 0),)
