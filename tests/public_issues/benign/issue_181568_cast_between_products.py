# pytorch#181568: a matrix product, cast to bfloat16 and back, plus a float32 tensor.
# No bug: compiled leaves the casts out, and has them with emulate_precision_casts.

import torch

EXPECT = ("precision_casts",)


def f(a, b, c):
    o = torch.matmul(a, b).to(torch.bfloat16).to(torch.float32) + c
    return o, o.mean(-1)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(30, 16), torch.randn(16, 17), torch.randn(17))
