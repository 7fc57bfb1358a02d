"""#117544: relu of an infinity that sinh made is NaN, because the C++ multiplies by a mask (-inf * 0). Mended by #117622.

Undone: the maximum in torch/_inductor/codegen/cpp.py, CppOverrides.relu, is the product of the value and the mask again.
"""

from torch._inductor.codegen.cpp import CppOverrides

CASE = """
import torch


def make():
    return (lambda x: torch.relu(torch.sinh(x))), (torch.tensor([-572373.5, 755109.125, 330995.5625]),)
"""
STAGES = ("codegen",)
NAMES = ("relu", "aten.relu")

CppOverrides.relu = staticmethod(lambda x: f"{x} * ({x}>0)")
