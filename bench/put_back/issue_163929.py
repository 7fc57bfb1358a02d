"""`argmax` over all elements of a transposed tensor that was written to counts in the order of memory, not of indices.

Mended by pull request 164040 (the index is computed where the layout is not contiguous). Undone in
torch/_inductor/lowering.py, `_make_reduction_inner`.
"""

import inspect

from torch._inductor import lowering

CASE = """
import torch


def model(x):
    x = x.transpose(0, 1)
    x.add_(1)
    return x.argmax()


def make():
    torch.manual_seed(0)
    return model, (torch.randn(4, 6),)
"""
STAGES = ("lowering",)
NAMES = ("aten.argmax", "argmax")

function = inspect.unwrap(lowering._make_reduction_inner)
source = inspect.getsource(function)
source = source.replace("len(reduced_sizes) > 1", "False")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(lowering), scope)
function.__code__ = scope["_make_reduction_inner"].__code__
