# pytorch#141727, variant: rms_norm in float32 of a bfloat16 tensor, cast back.
# No bug: at most one rounding to bfloat16.

import torch

EXPECT = ("equal", "rounding", "precision_casts")


def f(x, s):
    return torch.rms_norm(x.float(), (512,), s, 1e-5).to(torch.bfloat16)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(2, 17, 512).bfloat16(), torch.randn(512).bfloat16())
