# pytorch#190421: a sum of infinite constants with dtype=int32.
# A bug: eager gives a number; the compiler converts infinity to int and raises.

import torch

EXPECT = ("compile_error",)


def f():
    return torch.sum(torch.log(torch.full((2,), 0.0)), dtype=torch.int32).float()


def make():
    return f, ()
