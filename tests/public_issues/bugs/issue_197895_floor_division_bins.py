# pytorch#197895, variant: floor quotients become integers, as for the bins of a histogram.
# A bug: whole steps away from the exact integer, which eager has.

import torch

EXPECT = ("miscompile",)


def make():
    a = torch.tensor([1.0, 0.5, 6.0, 1.0, 7.0, 3.0, 2.5, 9.0])
    b = torch.tensor([0.1, 0.1, 0.2, 1 / 3, 0.7, 0.3, 0.1, 0.9])
    return (lambda a, b: (a // b).long()), (a, b)
