"""#143555: bitwise_right_shift by 64 shifts by 0 in C++, because counts of the width and more are undefined there. Mended by
#143635.

Undone: the guard of the count in torch/_inductor/codegen/cpp.py, CppOverrides.bitwise_right_shift and left_shift.
"""

from torch._inductor.codegen.cpp import CppOverrides

CASE = """
import torch


def make():
    return torch.bitwise_right_shift, (torch.tensor(1000), torch.tensor(64))
"""
STAGES = ("codegen",)
NAMES = ("bitwise_right_shift", "aten.bitwise_right_shift")

CppOverrides.bitwise_right_shift = staticmethod(lambda a, b: f"decltype({a})({a} >> {b})")
CppOverrides.bitwise_left_shift = staticmethod(lambda a, b: f"decltype({a})({a} << {b})")
