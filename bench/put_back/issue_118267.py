"""#118267: acosh of large negative numbers is -inf in vectorized C++, where eager has NaN. Mended by #118350.

Undone: torch/_inductor/codegen/cpp.py, CppVecOverrides.acosh, computes log(x + sqrt(x * x - 1)) again.
"""

from torch._inductor.codegen.cpp import CppVecOverrides

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return torch.acosh, (torch.randn(64) * 100000,)
"""
STAGES = ("codegen",)
NAMES = ("acosh", "aten.acosh")

CppVecOverrides.acosh = staticmethod(lambda x: f"({x} + ({x} * {x} - decltype({x})(1)).sqrt()).log()")
