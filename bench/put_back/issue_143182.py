"""#143182: layer_norm over many elements is off, because C++ combines all of them one by one. Mended by #145061.

Undone: Welford's reduction by cascades in torch/_inductor/codegen/cpp.py, CppKernel._acc_helper_init (a helper for a single chunk).
"""

import sympy
from torch._inductor.codegen.cpp import CppKernel

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.LayerNorm([1024, 1024]), (torch.randn(2, 1024, 1024),)
"""
STAGES = ("codegen",)
NAMES = ("welford_reduce", "var_mean", "var", "aten.var_mean", "native_layer_norm", "layer_norm")


def single_chunk(wrapped):
    def helper_init(self, reduction_type, helper_val, helper_range, *arguments, **named):
        return wrapped(self, reduction_type, helper_val, sympy.S.One, *arguments, **named)

    return helper_init


CppKernel._acc_helper_init = single_chunk(CppKernel._acc_helper_init)
