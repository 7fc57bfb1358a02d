"""#102315: a compiled forward takes an empty ModuleList for true. Mended by #102583.

Undone: the truth of modules in torch/_dynamo/symbolic_convert.py (generic_jump, by generic_bool) is that of "is not None"
again.
"""

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.variables import ConstantVariable

CASE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([])

    def forward(self, x):
        return x + 1 if self.layers else x - 1


def make():
    return Model().eval(), (torch.zeros(3),)
"""
STAGES = ("dynamo",)
NAMES = ("ModuleList", "generic_jump", "layers", "__bool__", "__len__")

generic_bool = symbolic_convert.generic_bool


def true_if_module(tx, obj):
    is_module = isinstance(getattr(obj, "value", None), torch.nn.Module)
    return ConstantVariable.create(True) if is_module else generic_bool(tx, obj)


symbolic_convert.generic_bool = true_if_module
