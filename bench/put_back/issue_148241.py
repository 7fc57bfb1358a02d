"""#148241: x - tanh(x) of small numbers, and atan2 of it, is off, because vectorized C++ computes tanh by exp. Mended by
#148254.

Undone: torch/_inductor/codegen/cpp.py, CppVecOverrides.tanh, always computes 2 / (1 + exp(-2x)) - 1 again.
"""

from torch._inductor.codegen.cpp import CppVecOverrides

CASE = """
import torch


def f(x):
    x = torch.nn.functional.tanhshrink(x)
    return torch.atan2(x, x)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(1, 3, 64, 64),)
"""
STAGES = ("codegen",)
NAMES = ("tanh", "aten.tanh")

CppVecOverrides.tanh = staticmethod(
    lambda a: f"decltype({a})(2) / (decltype({a})(1) + (decltype({a})(-2) * {a}).exp()) - decltype({a})(1)"
)
