# pytorch#136181: a scale computed in bfloat16, then cast to float32.
# No bug: eager rounds between the operators; compiled does not.

import torch

EXPECT = ("rounding", "precision_casts")


def f(x):
    return (448.0 / torch.clamp(torch.abs(torch.max(x)), min=1e-12)).to(torch.float32)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(16, 16, 768).bfloat16(),)
