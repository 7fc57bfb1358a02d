"""#98149: cos of a uint8 power is that of a number above 255, because C++ multiplies uint8 as int. Mended by #98473.

Undone: the cast of the product back to the operands' type in torch/_inductor/codegen/cpp.py, CppOverrides.mul.
"""

from torch._inductor.codegen.cpp import CppOverrides

CASE = """
import torch


def make():
    return (lambda x: torch.cos(x.pow(5))), (torch.tensor([4], dtype=torch.uint8),)
"""
STAGES = ("codegen",)
NAMES = ("mul", "aten.mul", "pow", "aten.pow")

CppOverrides.mul = staticmethod(lambda a, b: f"{a} * {b}")
