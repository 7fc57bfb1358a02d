# pytorch#191449: resize_ on a view of an intermediate tensor.
# A bug: the compiled result has another shape than eager's.

import torch

EXPECT = ("metadata", "miscompile")


def f(x):
    base = x + 1
    alias = base.view(-1)
    alias.resize_(12)
    return base + 1


def make():
    return f, (torch.zeros(1),)
