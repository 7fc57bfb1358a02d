"""#172666: in a compiled function, two equal tuples of a subclass of tuple are not equal. Mended by #172667.

Undone: torch/_dynamo/variables/user_defined.py, UserDefinedTupleVariable compares its objects as object does (by identity)
again, not by their elements.
"""

from torch._dynamo.variables.object_protocol import object_richcompare
from torch._dynamo.variables.user_defined import UserDefinedTupleVariable

CASE = """
import torch


class CustomTuple(tuple):
    pass


TARGET = CustomTuple([1, -1])


def f(x, given):
    if given != TARGET:
        return x + 1.0
    return x - 1.0


def make():
    return f, (torch.ones(1), CustomTuple([1, -1]))
"""
STAGES = ("dynamo",)
NAMES = ("CustomTuple", "__ne__", "__eq__", "ne", "eq")

UserDefinedTupleVariable.richcompare_impl = object_richcompare
