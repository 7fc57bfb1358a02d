# pytorch#163449: powers of powers of a norm in bfloat16.
# No bug: each step rounds to bfloat16, and powers enlarge it.

import torch
import torch.nn.functional as F

EXPECT = ("rounding",)


def f(a, b, c, d, e):
    t4 = torch.addmm(a, b, c).norm()
    t7 = d.var(dim=0).var()
    return torch.pow(torch.pow(t4, t7), t7 + t4 + F.relu(e))


def make():
    torch.manual_seed(0)
    return f, (
        torch.rand(5, 4).bfloat16() * 0.01,
        torch.rand(5, 64).bfloat16() * 0.1,
        torch.rand(64, 4).bfloat16() * 0.1,
        torch.rand(3, 4, 5, 2),
        torch.rand(()),
    )
