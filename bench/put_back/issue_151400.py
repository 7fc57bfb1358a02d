"""#151400: the mean of long rows of an outer product is off, because C++ adds each row to one accumulator. Mended by #163144.

Undone: cascade summation of sums in torch/_inductor/codegen/cpp.py, CppKernel.need_use_acc_helper.
"""

from torch._inductor.codegen.cpp import CppKernel

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return (lambda x, y: torch.outer(x, torch.ones_like(y)).mean(1)), (torch.randn(64), torch.randn(3 * 8 * 64 * 64))
"""
STAGES = ("codegen",)
NAMES = ("sum", "mean", "aten.sum", "aten.mean")

CppKernel.need_use_acc_helper = lambda self, reduction_type, dtype, use_scalar: reduction_type == "welford_reduce"
