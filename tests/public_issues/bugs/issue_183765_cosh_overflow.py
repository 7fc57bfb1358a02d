# pytorch#183765: cosh of numbers near the border of float32.
# A bug: the result is finite in float32; the formula with exp overflows to infinity.

import torch

EXPECT = ("nonfinite",)


def make():
    return (lambda x: torch.cosh(x)), (torch.tensor([88.85, 88.9, 89.1, -89.2]),)
