# pytorch#150114: the condition number of a singular matrix.
# No bug: no digit of eager's is correct: 6e7 where float64 has 9e16.

import torch

EXPECT = ("unstable",)


def make():
    return (lambda x: torch.linalg.cond(torch.arctan(x))), (torch.ones(2, 2),)
