# pytorch#183771: strides of a nearest interpolation of a permuted input.
# No bug any more; right in torch 2.13.

import torch
import torch.nn.functional as F

EXPECT = ("equal",)


def f(x):
    return F.interpolate(x, size=(5, 6, 7), mode="nearest")


def make():
    torch.manual_seed(0)
    return f, (torch.randn(60 * 2).as_strided((2, 2, 5, 2, 3), (60, 1, 12, 6, 2)),)
