# pytorch#178013: 0 // 0 of integers.
# No bug any more; right in torch 2.13: eager raises, and compiled too.

import torch

EXPECT = ("invalid",)


def make():
    return (lambda a, b: torch.floor_divide(a, b)), (torch.tensor([0, 5]), torch.tensor([0, 0]))
