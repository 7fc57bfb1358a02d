# pytorch#197895, variant: floor division in float64.
# A bug: wrong by one where the reference has the same precision.

import torch

EXPECT = ("miscompile",)


def make():
    a = torch.tensor([1.0, 0.5, 6.0, 1.0, 7.0, 3.0, 2.5, 9.0], dtype=torch.double)
    b = torch.tensor([0.1, 0.1, 0.2, 1 / 3, 0.7, 0.3, 0.1, 0.9], dtype=torch.double)
    return (lambda a, b: a // b), (a, b)
