# pytorch#195451: slice_scatter, x.copy_() of the result, and the caller writes into what is returned.
# A bug: the result is a new tensor in eager and x itself compiled, so that the write changes x.

import torch

EXPECT = ("aliasing", "miscompile")


def fn(x, src):
    updated = torch.slice_scatter(x, src, 0, 0, 1)
    x.copy_(updated)
    return updated


def make():
    return fn, (torch.tensor([1.0, 2.0]), torch.tensor([10.0]))


def run(model, inputs):
    out = model(*inputs)
    out.add_(100.0)
    return out
