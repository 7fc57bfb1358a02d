"""#115071: compiled torch.add of complex numbers writes its result into its input. Mended by #115166.

Undone: torch/_inductor/ir.py, ComplexView.get_inputs_that_alias_output, and the copies in torch/_inductor/decomposition.py,
add, which hide it today.
"""

import torch
from torch._inductor import decomposition, ir

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return (lambda a: torch.add(a, a)), (torch.randn(41, dtype=torch.complex64),)
"""
STAGES = ("lowering", "decomposition", "scheduler", "codegen")
NAMES = ("add", "aten.add", "view", "aten.view", "ComplexView", "reuse")


def add(x, y, *, alpha=None):
    if not (torch.is_tensor(x) and x.is_complex() and torch.is_tensor(y) and y.is_complex()):
        return NotImplemented
    z = y if alpha is None else alpha * y
    return (x.view(x.real.dtype) + z.view(y.real.dtype)).view(torch.promote_types(x.dtype, y.dtype))


decomposition.decompositions[torch.ops.aten.add.Tensor] = add
decomposition.fast_random_decomps.cache_clear()
ir.ComplexView.get_inputs_that_alias_output = lambda self: ()
