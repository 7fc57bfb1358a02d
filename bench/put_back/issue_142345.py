"""#142345: asinh of large negative numbers is -inf in vectorized C++. Mended by #142360.

Undone: torch/_inductor/codegen/cpp.py, CppVecOverrides.asinh, computes log(x + sqrt(x * x + 1)) again.
"""

from torch._inductor.codegen.cpp import CppVecOverrides

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return torch.asinh, (torch.cat([torch.randn(30), torch.full((34,), -10000.1)]),)
"""
STAGES = ("codegen",)
NAMES = ("asinh", "aten.asinh")

CppVecOverrides.asinh = staticmethod(lambda x: f"({x} + ({x} * {x} + decltype({x})(1)).sqrt()).log()")
