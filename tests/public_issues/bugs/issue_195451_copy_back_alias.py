# pytorch#195451, variant: slice_scatter, x.copy_() of the result, which is returned.
# A bug: values and strides agree; only the shared memory tells.

import torch

EXPECT = ("aliasing",)


def fn(x, src):
    updated = torch.slice_scatter(x, src, 0, 0, 1)
    x.copy_(updated)
    return updated


def make():
    return fn, (torch.tensor([1.0, 2.0]), torch.tensor([10.0]))
