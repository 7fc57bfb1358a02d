# pytorch#183761: where in float16, then float32 arithmetic.
# No bug: compiled leaves the casts out, and has them with emulate_precision_casts.

import torch

EXPECT = ("precision_casts",)


def f(x):
    y = torch.where(x > 0, x.half(), torch.full_like(x.half(), 0.1))
    z = y.float() + 1.0 / 3.0
    return z, z.sum()


def make():
    torch.manual_seed(0)
    return f, (torch.randn(9, 7),)
