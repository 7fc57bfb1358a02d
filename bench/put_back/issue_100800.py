"""#100800: where with a constant mask takes the other operand in vectorized C++, because a true lane is 1.0 and not all bits.
Mended by #100950.

Undone: a scalar mask becomes a vector of ones in torch/_inductor/codegen/cpp.py, CppVecKernel.broadcast, in place of
VecMask.from (the mask's type is another today).
"""

from torch._inductor.codegen.cpp import CppVecKernel

CASE = """
import torch


def f(x):
    return torch.where(torch.ones_like(x).to(torch.bool), torch.zeros_like(x), torch.ones_like(x) * 2)


def make():
    return f, (torch.ones(8, 8),)
"""
STAGES = ("codegen",)
NAMES = ("where", "aten.where", "broadcast")


def broadcasting(wrapped):
    def broadcast(self, scalar_var):
        vector = wrapped(self, scalar_var)
        mask = self._get_mask_type()
        return vector

    return broadcast


CppVecKernel.broadcast = broadcasting(CppVecKernel.broadcast)
