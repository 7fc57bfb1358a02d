# pytorch#183767: asinh of 3e22, whose square overflows.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")


def make():
    return (lambda x: torch.asinh(x)), (torch.tensor([3e22, 7e25, -8e23, 1e10]),)
