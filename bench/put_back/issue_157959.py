"""A tensor divided by a Python number is multiplied by its inverse, which is off by a rounding.

Mended by pull request 158231 (on a CPU, it is divided). Undone in torch/_inductor/lowering.py, `div_prim`.
"""

import inspect

from torch._inductor import lowering

CASE = """
import torch


def model(x):
    return x / 101


def make():
    torch.manual_seed(42)
    return model, (torch.rand(5, 5),)
"""
STAGES = ("lowering",)
NAMES = ("aten.div", "div")

function = inspect.unwrap(lowering.div_prim)
source = inspect.getsource(function).replace(' and a.get_device().type != "cpu"', "")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(lowering), scope)
function.__code__ = scope["div_prim"].__code__
