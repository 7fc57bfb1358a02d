"""#143648: special.polygamma(0, x) is wrong in C++, because the zeta formula does not hold for n = 0. Mended by #144058.

Undone: the case n = 0 (digamma) in torch/_inductor/codegen/common.py, the C++ of polygamma in CppOverrides.
"""

from torch._inductor.codegen.cpp import CppOverrides

CASE = """
import torch


def make():
    return (lambda x: torch.special.polygamma(0, x)), (torch.tensor([2.0, 0.7, 5.0]),)
"""
STAGES = ("codegen",)
NAMES = ("polygamma", "aten.polygamma")

CppOverrides.polygamma = staticmethod(lambda x, y: f"{x} == 1 ? trigamma({y}) : calc_polygamma({y}, {x})")
