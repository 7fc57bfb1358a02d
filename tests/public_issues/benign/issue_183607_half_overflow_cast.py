# pytorch#183607: a cast to float16, a square that overflows there, and a cast back.
# No bug: inf is what the casts ask for, and emulate_precision_casts gives it; without them the value is right.

import torch

EXPECT = ("precision_casts",)


def fn(x):
    y = x.to(torch.float16)
    return (y * y).to(torch.float32)


def make():
    return fn, (torch.tensor([5000.0, 3.0, 300.0]),)
