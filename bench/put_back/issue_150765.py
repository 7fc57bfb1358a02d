"""#150765: a compiled function that deletes an attribute does not call the object's own __delattr__. Mended by #150899.

Undone: torch/_dynamo/variables/builtin.py, BuiltinVariable.call_delattr, deletes as object.__delattr__ does again.
"""

from torch._dynamo.variables import DeletedVariable
from torch._dynamo.variables.builtin import BuiltinVariable

CASE = """
import torch


class Object:
    def __init__(self, val):
        self.val = val

    def __delattr__(self, name):
        if name != "val":
            super().__delattr__(name)


def f(x):
    a = Object(1)
    del a.val
    return x + 1, hasattr(a, "val")


def make():
    return f, (torch.ones(1),)
"""
STAGES = ("dynamo",)
NAMES = ("__delattr__", "delattr", "call_delattr")


def call_delattr(self, tx, obj, name_var):
    return obj.call_method(tx, "__setattr__", [name_var, DeletedVariable()], {})


BuiltinVariable.call_delattr = call_delattr
