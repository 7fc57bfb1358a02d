"""#113141: sums of products of uint8 differ when the factors are swapped, because C++ adds uint8 as int. Mended by #113253.

Undone: the cast of the result back to the operands' type in torch/_inductor/codegen/cpp.py, CppOverrides.add and sub.
"""

from torch._inductor.codegen.cpp import CppOverrides

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return (lambda x, y: torch.add(x, y).neg().to(torch.int32)), (
        torch.tensor(200, dtype=torch.uint8),
        torch.tensor(100, dtype=torch.uint8),
    )
"""
STAGES = ("codegen",)
NAMES = ("add", "aten.add", "sub")

CppOverrides.add = staticmethod(lambda a, b: f"{a} + {b}")
CppOverrides.sub = staticmethod(lambda a, b: f"{a} - {b}")
