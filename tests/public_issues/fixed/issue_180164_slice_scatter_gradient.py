# pytorch#180164: the gradient of slice_scatter and a sum.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")

BACKWARD = True


def make():
    torch.manual_seed(0)
    return (lambda x, y: torch.slice_scatter(x, y, dim=1, start=0, end=6).sum(dim=1)), (
        torch.randn(4, 13, 33, requires_grad=True),
        torch.randn(4, 6, 33, requires_grad=True),
    )
