# pytorch#195451, variant: y = x.clone(); y[0] = s; x.copy_(y); return y.
# A bug: the result is a new tensor in eager and x itself compiled.

import torch

EXPECT = ("aliasing",)


def f(x, s):
    y = x.clone()
    y[0] = s
    x.copy_(y)
    return y


def make():
    return f, (torch.arange(4.0), torch.tensor(9.0))
