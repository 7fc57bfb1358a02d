"""Indices from `argwhere` are read by the wrong strides: rows were expected of `nonzero`, whose kernels write columns.

Mended by one of pull requests 130440, 145650 and 144695 (the fake tensor has the strides of the kernels). Undone in
torch/_subclasses/fake_impls.py, `nonzero`. 2.13 checks the strides of results too and would raise: `size_asserts` is
off in the case.
"""

import __future__
import inspect

from torch._subclasses import fake_impls

CASE = """
import torch

CONFIG = {"dynamo": {"capture_dynamic_output_shape_ops": True}}
OPTIONS = {"size_asserts": False}


def model(tensor, mapping):
    xx, yy = torch.meshgrid(mapping, tensor, indexing="ij")
    indices = torch.argwhere(xx == yy)
    mapped_values = torch.zeros_like(tensor)
    mapped_values[indices[:, 1]] = indices[:, 0]
    return mapped_values


def make():
    return model, (torch.tensor([1, 2, 3, 5, 6, 7]), torch.tensor([0, 3, 4, 5, 7]))
"""
STAGES = ("fake_tensor",)
NAMES = ("aten.nonzero", "nonzero", "argwhere")

function = inspect.unwrap(fake_impls.nonzero)
source = inspect.getsource(function)
source = source.replace("new_empty_strided((nnz, arg.dim()), (1, nnz), ", "new_empty((nnz, arg.dim()), ")
scope, flags = {}, __future__.annotations.compiler_flag
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec", flags), vars(fake_impls), scope)
function.__code__ = scope["nonzero"].__code__
