"""`torch.dist` of two numbers overflows to inf: the difference is squared, where eager takes its absolute value.

Mended by pull request 144073 (a norm of a single element is its absolute value). Undone in
torch/_refs/linalg/__init__.py, `vector_norm`.
"""

import inspect

from torch._refs import linalg

CASE = """
import torch


def model(x, y):
    return torch.dist(x, y)


def make():
    return model, (torch.tensor(3e25), torch.tensor(1e25))
"""
STAGES = ("decomposition",)
NAMES = ("aten.dist", "dist", "aten.linalg_vector_norm", "linalg_vector_norm", "vector_norm", "norm")

function = inspect.unwrap(linalg.vector_norm)
source = inspect.getsource(function).replace("guard_or_false(x.numel() == 1)", "False")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(linalg), scope)
function.__code__ = scope["vector_norm"].__code__
