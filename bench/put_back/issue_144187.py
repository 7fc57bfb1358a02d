"""`constant_pad_nd` that cuts off or pads by nothing is contiguous as a fake tensor; eager's clone keeps the strides.

Mended by pull request 144394, then 159878 (the fake tensor rule clones where nothing is padded). Undone in
torch/_meta_registrations.py, `_constant_pad_nd_meta`.
"""

import inspect

from torch import _meta_registrations as meta

CASE = """
import torch


def model(x):
    return torch.ops.aten.constant_pad_nd(x, [-1, 0], 0.0)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(6, 4, 5).transpose(1, 2),)
"""
STAGES = ("fake_tensor", "lowering")
NAMES = ("aten.constant_pad_nd", "constant_pad_nd")

function = inspect.unwrap(meta._constant_pad_nd_meta)
source = inspect.getsource(function)
source = source.replace("isinstance(p, utils.IntWithoutSymInt) and p <= 0", "False")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(meta), scope)
function.__code__ = scope["_constant_pad_nd_meta"].__code__
