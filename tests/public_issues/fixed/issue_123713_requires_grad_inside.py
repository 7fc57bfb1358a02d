# pytorch#123713: requires_grad_ of an intermediate tensor.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")

GRAD = "enabled"


def f(x, w):
    with torch.no_grad():
        h = x * 2
    h.requires_grad_()
    return (h * w).sum(), h


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4), torch.randn(4, requires_grad=True))
