# pytorch#125999: a stable log-sum-exp copied into a view of the input.
# No bug: differences of a few ulp.

import torch

EXPECT = ("rounding",)


def f(a, b):
    v = a[..., 1, :]
    m, n = torch.max(v, b), torch.min(v, b)
    v.copy_(m + torch.log(1 + torch.exp(n - m)))


def make():
    torch.manual_seed(0)
    return f, (torch.randn(1, 8, 2, 1026), torch.randn(1, 8, 1026))
