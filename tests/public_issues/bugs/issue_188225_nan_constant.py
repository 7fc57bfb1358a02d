# pytorch#188225: a softmax of constants that are NaN.
# A bug: eager gives NaN; the compiler compares NaN while it propagates indices and raises.

import torch

EXPECT = ("compile_error",)


def f():
    t = torch.ones([2, 2])
    return torch.softmax(torch.arccosh(torch.log2(torch.atan2(t, t))), 1)


def make():
    return f, ()
