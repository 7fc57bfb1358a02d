# pytorch#197554, variant: index_add with a source of another shape.
# A bug: eager raises; compiled broadcasts.

import torch

EXPECT = ("accepts_invalid",)


def make():
    return (lambda x, i, s: torch.index_add(x, 0, i, s)), (
        torch.zeros(3, 2),
        torch.tensor([0, 2]),
        torch.tensor([3.0, 4.0]),
    )
