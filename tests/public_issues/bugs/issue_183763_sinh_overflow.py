# pytorch#183763: sinh of numbers near the border of float32.
# A bug: the result is finite in float32; the formula with exp overflows to infinity.

import torch

EXPECT = ("nonfinite",)


def make():
    return (lambda x: torch.sinh(x)), (torch.tensor([88.85, 89.2, 88.95, -89.0, 1.0, 0.5, 2.0, 1e-6]),)
