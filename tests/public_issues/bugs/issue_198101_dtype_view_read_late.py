"""pytorch#198101: what reads a dtype view of an input is computed after a later write into that input.

At fault: lowering, view.dtype (a view of the input that is read late, after the copy into it)
"""

import torch

EXPECT = ("miscompile",)


def fn(x):
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y.view(torch.int64)


def make():
    return fn, (torch.arange(-12, 12, dtype=torch.int64).reshape(4, 6),)
