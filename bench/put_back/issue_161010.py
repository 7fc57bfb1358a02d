"""`clone(memory_format=torch.preserve_format)` of a dense tensor with a dimension of size 1 has other strides than eager.

Mended by pull request 161400 (163017): strides of a dense tensor are kept. Undone in torch/_prims_common/__init__.py,
`compute_elementwise_output_strides`.
"""

import inspect

import torch
import torch._prims_common

CASE = """
import torch


def model(x):
    return torch.clone(x, memory_format=torch.preserve_format)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(1, 5).t(),)
"""
STAGES = ("fake_tensor", "decomposition")
NAMES = ("aten.clone", "clone")

function = inspect.unwrap(torch._prims_common.compute_elementwise_output_strides)
source = inspect.getsource(function)
source = source.replace("if len(tensors) == 1:", "if False:")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(torch._prims_common), scope)
function.__code__ = scope["compute_elementwise_output_strides"].__code__
