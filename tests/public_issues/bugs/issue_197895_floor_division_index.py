# pytorch#197895, variant: a floor quotient is an index into a table.
# A bug: another row is read than the exact one, which eager reads.

import torch

EXPECT = ("miscompile",)


def make():
    torch.manual_seed(0)
    a = torch.tensor([1.0, 0.5, 6.0, 1.0, 7.0, 3.0, 2.5, 9.0])
    b = torch.tensor([0.1, 0.1, 0.2, 1 / 3, 0.7, 0.3, 0.1, 0.9])
    return (lambda a, b, t: t[torch.div(a, b, rounding_mode="floor").to(torch.int64)]), (a, b, torch.randn(40, 3))
