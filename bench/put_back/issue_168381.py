"""`torch.index_select` from a transposed tensor has transposed strides; eager's result is contiguous.

Mended by pull request 168922 (`contiguous`). Undone in torch/_refs/__init__.py, `index_select`.
"""

import inspect

import torch
import torch._refs

CASE = """
import torch


def model(x, index):
    return torch.index_select(x, 0, index)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(6, 4, 5).transpose(1, 2), torch.tensor([0, 2, 3]))
"""
STAGES = ("decomposition",)
NAMES = ("aten.index_select", "index_select")

function = inspect.unwrap(torch._refs.index_select)
source = inspect.getsource(function)
source = source.replace(".contiguous(memory_format=utils.suggest_memory_format(x))", "")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(torch._refs), scope)
function.__code__ = scope["index_select"].__code__
