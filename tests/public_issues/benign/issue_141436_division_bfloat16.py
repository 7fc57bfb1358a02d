# pytorch#141436: a bfloat16 tensor divided by a float32 one cast to bfloat16.
# No bug: every element is right to one ulp of bfloat16; the cast is left out when compiled.

import torch

EXPECT = ("rounding", "precision_casts")


def f(Y, y):
    return Y / y.to(Y.dtype).unsqueeze(-1), torch.cumsum(y, -1)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(1, 6, 128, 4, 32).bfloat16(), torch.randn(1, 6, 128, 4))
