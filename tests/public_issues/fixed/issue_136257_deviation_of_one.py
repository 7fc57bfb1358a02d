# pytorch#136257: std and var of one element and of constants.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")


def make():
    return (lambda x, y: (x.std(1), x.var(1, correction=0), y.std(0), y.var(0))), (
        torch.ones(4, 1),
        torch.full((17, 3), 1e4),
    )
