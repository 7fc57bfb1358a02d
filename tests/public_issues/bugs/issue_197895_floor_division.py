# pytorch#197895: floor division of floats: 1.0 // 0.1.
# A bug: 9 in eager, in Python and exactly; compiled gives floor(1.0 / 0.1) = 10.

import torch

EXPECT = ("miscompile",)


def make():
    a = torch.tensor([1.0, 0.5, 6.0, 1.0, 7.0, 3.0, 2.5, 9.0])
    b = torch.tensor([0.1, 0.1, 0.2, 1 / 3, 0.7, 0.3, 0.1, 0.9])
    return (lambda a, b: (a // b, torch.div(a, b, rounding_mode="floor"))), (a, b)
