# pytorch#174172: copysign with the Python number -0.0.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    torch.manual_seed(0)
    return (lambda x: torch.copysign(x, -0.0)), (torch.randn(20),)
