# pytorch#189799: ceil(-0.5) + 0, then the reciprocal.
# A bug: -0.0 + 0.0 is 0.0 and its reciprocal +inf; compiled drops the addition and gives -inf.

import torch

EXPECT = ("nonfinite", "miscompile")


def f(x):
    v = torch.ceil(x)
    v = torch.add(v, torch.zeros_like(v))
    return torch.reciprocal(v)


def make():
    return f, (torch.tensor([-0.5, -0.1, -0.9]),)
