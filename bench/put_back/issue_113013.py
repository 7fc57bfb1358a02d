"""#113013: argmax over all dimensions returns the index within the last one, in C++ with several loops. Mended by #113168.

Undone: the index over all reduced loops in torch/_inductor/codegen/cpp.py, CppKernel.reduction.
"""

from torch._inductor.codegen import cpp
from torch._inductor.virtualized import V

CASE = """
import torch


def make():
    return (lambda x: torch.argmax(torch.adaptive_avg_pool1d(x, 2))), (torch.arange(27.0).double().view(3, 3, 3),)


DYNAMIC = True
"""
STAGES = ("codegen",)
NAMES = ("argmax", "aten.argmax")


def combined(wrapped):
    def combine(kind, var, value, *arguments, index=None, **named):
        index = V.kernel.itervars[-1] if index is not None else None
        return wrapped(kind, var, value, *arguments, index=index, **named)

    return combine


cpp.reduction_combine = combined(cpp.reduction_combine)
