"""`tile` of a tensor of one element and then `as_strided`: the view reads beyond the element, as nothing was repeated.

Mended by pull request 127533 (what `repeat` expands is copied). Undone in torch/_inductor/lowering.py, `repeat`.
"""

import inspect

from torch._inductor import lowering

CASE = """
import torch


def model(x):
    full = x.tile((3, 2))
    view = torch.as_strided(full, (3, 2), full.stride())
    return view + view


def make():
    return model, (torch.arange(64.0)[7:8].view(1, 1),)
"""
STAGES = ("lowering",)
NAMES = ("aten.repeat", "repeat", "tile", "aten.as_strided", "as_strided")

function = inspect.unwrap(lowering.repeat)
source = inspect.getsource(function)
source = source.replace("clone(expand(x, new_size))", "expand(x, new_size)")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(lowering), scope)
function.__code__ = scope["repeat"].__code__
