"""pytorch#193492: argmax of a pooled transposed tensor gives the index in another layout.

At fault: lowering, argmax (_make_reduction_inner gives no logical index where the input is a pointwise that is not
stored, so the order of the loops decides; the fix is pytorch#195063)
"""

import torch

EXPECT = ("miscompile",)


def fn(x):
    x = torch.adaptive_avg_pool1d(input=x, output_size=2)
    return torch.argmax(input=x)


def make():
    torch.manual_seed(123)
    return fn, (torch.rand([4, 4, 3], dtype=torch.float64).transpose(0, 1),)
