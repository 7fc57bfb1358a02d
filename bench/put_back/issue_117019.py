"""`torch.diag_embed` with a negative and a positive dim, such as `dim1=-1, dim2=0`, has its offset on the other side.

Mended by pull request 120549 (negative dims are resolved before the two are put in order). Undone in
torch/_refs/__init__.py, `diag_embed`: they are put in order first.
"""

import inspect

import torch
import torch._refs

CASE = """
import torch


def model(x):
    return torch.diag_embed(input=x, dim1=-1, dim2=0, offset=1)


def make():
    torch.manual_seed(0)
    return model, (torch.rand(4, 3, 1, dtype=torch.float64),)
"""
STAGES = ("decomposition",)
NAMES = ("aten.diag_embed", "diag_embed")

function = inspect.unwrap(torch._refs.diag_embed)
source = inspect.getsource(function)
resolving = source[source.index("    # convert from negative dims") : source.index("    # as per the docs, exchanging")]
source = source.replace(resolving, "").replace("    torch._check(\n", resolving + "    torch._check(\n", 1)
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(torch._refs), scope)
function.__code__ = scope["diag_embed"].__code__
