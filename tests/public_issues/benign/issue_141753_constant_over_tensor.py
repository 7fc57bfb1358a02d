# pytorch#141753: a constant divided by a tensor.
# No bug: constant times reciprocal is one rounding more.

import torch

EXPECT = ("equal", "rounding")


def make():
    torch.manual_seed(0)
    return (lambda x: (3.0 / x, x / 7.0, torch.tensor(1.5) / x)), (torch.rand(333) + 0.1,)
