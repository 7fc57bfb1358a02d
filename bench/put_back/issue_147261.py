"""#147261: with dynamic sizes F.interpolate gives another size. Mended by #148205.

Undone: the size is a product cut to an integer (torch/_decomp/decompositions.py), not rounded up.
"""

import math

from torch._decomp import decompositions

CASE = """
import torch
import torch.nn.functional as F

DYNAMIC = True


def f(x):
    return F.interpolate(x, scale_factor=1.5)


def make():
    return f, (torch.randn(1, 2, 3, 5),)
"""
STAGES = ("decomposition", "functionalization", "fake_tensor")
NAMES = ("upsample_nearest2d", "interpolate", "upsample_compute_output_size")

decompositions.sym_int = lambda size: math.ceil(size)
