# pytorch#194706: jacfwd through prod, sum and mm in float16.
# A bug: the C++ that is generated does not compile.

import torch

EXPECT = ("compile_error",)


def f(x):
    return torch.sum(torch.mm(torch.mm(torch.prod(x) + x, torch.sum(x) + x), torch.sum(x) + x))


def make():
    return (lambda x: torch.func.jacfwd(f)(x)), ((torch.arange(1, 10, dtype=torch.float16) / 10).reshape(3, 3),)
