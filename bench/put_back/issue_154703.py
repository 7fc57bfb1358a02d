"""#154703: the mean of a large tensor is far off, because C++ adds all of it to one accumulator. Mended by #156296.

Undone: cascade summation of sums in torch/_inductor/codegen/cpp.py, CppKernel.need_use_acc_helper.
"""

from torch._inductor.codegen.cpp import CppKernel

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return torch.mean, (torch.rand(100000).expand(2000, 100000),)
"""
STAGES = ("codegen",)
NAMES = ("sum", "mean", "aten.sum", "aten.mean")

CppKernel.need_use_acc_helper = lambda self, reduction_type, dtype, use_scalar: reduction_type == "welford_reduce"
