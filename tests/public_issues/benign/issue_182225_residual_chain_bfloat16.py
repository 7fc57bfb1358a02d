# pytorch#182225, variant: twelve residual steps in bfloat16.
# No bug: eager rounds twelve times, compiled once.

import torch

EXPECT = ("rounding", "precision_casts")


def f(x, w):
    for _ in range(12):
        x = x + torch.tanh(x * w) * 0.1
    return x


def make():
    torch.manual_seed(0)
    return f, (torch.randn(64, 64).bfloat16(), torch.randn(64).bfloat16())
