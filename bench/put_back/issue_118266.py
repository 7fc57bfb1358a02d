"""#118266: argmax over log1p's NaN is not the index of the first NaN in C++. Mended by #118358.

Undone: C++ compares by > again, so that NaN is never the largest (greater_or_nan of cpp_prefix.h is not called, by
torch/_inductor/codegen/cpp.py, reduction_combine), for scalar loops, which were all that there was for argmax.
"""

from torch._inductor.codegen import cpp

CASE = """
import torch


def make():
    return (lambda x: torch.argmax(torch.log1p(x))), (torch.tensor([3.0, -8.0, 5.0, -2.0, 1.0]),)


OPTIONS = {"cpp.simdlen": 1}
"""
STAGES = ("codegen",)
NAMES = ("argmax", "argmin", "aten.argmax")


def combined(wrapped):
    def combine(kind, var, value, *arguments, index=None, **named):
        if kind in ("argmin", "argmax") and index is not None:
            worse = f"{value} {'<' if kind == 'argmin' else '>'} {var}.value"
            return f"{worse} ? IndexValue<decltype({var}.value)>({index}, {value}) : {var}"
        return wrapped(kind, var, value, *arguments, index=index, **named)

    return combine


cpp.reduction_combine = combined(cpp.reduction_combine)
