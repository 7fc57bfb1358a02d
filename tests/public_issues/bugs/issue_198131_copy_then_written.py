"""pytorch#198131: a copy from one input into another gets what is written into the source afterwards.

At fault: post_grad, remove_noop_ops
"""

import torch

EXPECT = ("miscompile",)


def fn(dst, src):
    dst[0:, :] = src[0:, :]
    src.add_(1)
    return src


def make():
    return fn, (torch.zeros(3, 4), torch.arange(12.0).view(3, 4))
