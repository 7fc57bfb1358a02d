# pytorch#139789: the second call's inputs overlap and one of them is written.
# A bug: eager reads y after the write into x; no guard of the compiled program asks whether they overlap.

import torch

EXPECT = ("stale",)


def f(x, y):
    x.mul_(2)
    return x + y


def make():
    return f, (torch.ones(4), torch.ones(4))


_b = torch.ones(8)
CALLS = [(_b[:4], _b[2:6])]
