"""`view_copy` with a dtype of another size converts values where eager reads the same bytes as another type.

Mended by pull request 171442 (`clone().view(dtype)`). Undone in torch/_inductor/decomposition.py, `view_copy_dtype`.
"""

import inspect

from torch._inductor import decomposition

CASE = """
import torch


def model(x):
    return torch.ops.aten.view_copy.dtype(x, torch.int16)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(2, 4),)
"""
STAGES = ("decomposition",)
NAMES = ("aten.view_copy", "view_copy")

function = inspect.unwrap(decomposition.view_copy_dtype)
source = inspect.getsource(function).replace("self.clone().view(dtype)", "self.to(dtype).clone()")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(decomposition), scope)
function.__code__ = scope["view_copy_dtype"].__code__
