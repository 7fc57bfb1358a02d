"""#147450: polygamma(1, x) is infinite in C++ where eager's trigamma is not. Mended by #147453.

Undone: the case n = 1 (trigamma) in torch/_inductor/codegen/common.py, the C++ of polygamma in CppOverrides.
"""

from torch._inductor.codegen.cpp import CppOverrides

CASE = """
import torch


def make():
    return (lambda x: torch.special.polygamma(1, x)), (torch.tensor([-1.0]),)
"""
STAGES = ("codegen",)
NAMES = ("polygamma", "aten.polygamma")

CppOverrides.polygamma = staticmethod(lambda x, y: f"{x} == 0 ? calc_digamma({y}) : calc_polygamma({y}, {x})")
