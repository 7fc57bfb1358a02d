"""`F.pad` by nothing gives back its input, so that a later write into the input changes the result; eager copies.

Mended by pull request 100082 (`clone` in the lowering). Undone in torch/_inductor/lowering.py, `constant_pad_nd`.
"""

import inspect

from torch._inductor import lowering

CASE = """
import torch


def forward():
    a = torch.tensor([2.0])
    b = torch.nn.functional.pad(a, (0, 0))
    if a.mean() >= -1e5:
        a[0] = 1
    return b


with torch.no_grad():
    print(torch.compile(forward)())
"""
STAGES = ("lowering",)
NAMES = ("aten.constant_pad_nd", "constant_pad_nd", "pad")

function = inspect.unwrap(lowering.constant_pad_nd)
source = inspect.getsource(function).replace("return clone(x)", "return x")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(lowering), scope)
function.__code__ = scope["constant_pad_nd"].__code__
