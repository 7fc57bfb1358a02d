# pytorch#158530, variant: a sum of large terms that cancel.
# No bug: float32 has no correct digit of the result.

import torch

EXPECT = ("unstable",)


def make():
    torch.manual_seed(0)
    x = torch.randn(8, 4096) * 1e6
    return (lambda x, y: (x * 1.0 + y * 1.0).sum(-1) * 1e3), (x, -x.flip(-1))
