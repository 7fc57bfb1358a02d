"""#156788: negative numbers become other ones as uint8. Mended by #157267.

Undone: they wrap around, and are not cut off at zero (torch/_inductor/codegen/cpp.py).
"""

import functools

import torch
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
from torch._inductor.virtualized import ops

CASE = """
import torch


def f(x):
    return (x * 3).to(torch.uint8)


def make():
    return f, (torch.linspace(-9, 9, 40),)
"""
STAGES = ("codegen",)
NAMES = ("to_dtype",)


def cut_off(to_dtype):
    @functools.wraps(to_dtype)
    def convert(x, dtype, src_dtype=None, use_compute_types=True):
        if dtype is torch.uint8 and x.dtype.is_floating_point:
            x = ops.maximum(x, ops.constant(0.0, x.dtype)).value
        return to_dtype(x, dtype, src_dtype, use_compute_types)

    return staticmethod(convert)


CppOverrides.to_dtype = cut_off(CppOverrides.to_dtype)
CppVecOverrides.to_dtype = cut_off(CppVecOverrides.to_dtype)
