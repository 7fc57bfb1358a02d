"""`torch.linalg.vector_norm` with `dim=[]` returns the absolute values; eager reduces over all elements.

Mended by pull request 153570 (an empty list of dims is all of them). Undone in torch/_refs/linalg/__init__.py,
`vector_norm`.
"""

import inspect

from torch._refs import linalg

CASE = """
import torch


def model(x):
    return torch.linalg.vector_norm(x, ord=2, dim=[])


def make():
    torch.manual_seed(0)
    return model, (torch.rand(16, 32),)
"""
STAGES = ("decomposition",)
NAMES = ("aten.linalg_vector_norm", "linalg_vector_norm", "vector_norm")

function = inspect.unwrap(linalg.vector_norm)
source = inspect.getsource(function).replace("if dim == []:", "if False:")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(linalg), scope)
function.__code__ = scope["vector_norm"].__code__
