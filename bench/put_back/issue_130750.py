"""#130750: map in a compiled function is no iterator: it can be read twice. Mended by #131413.

Undone: torch/_dynamo/variables/builtin.py, BuiltinVariable.call_map, gives a tuple of the results again.
"""

from torch._dynamo.variables import TupleVariable
from torch._dynamo.variables.base import ValueMutationNew
from torch._dynamo.variables.builtin import BuiltinVariable

CASE = """
import torch


def f(x, y):
    values = map(torch.sin, (x, y))
    first = sum(values)
    return first, len(list(values))


def make():
    return f, (torch.linspace(-1, 1, 4), torch.linspace(0, 1, 4))
"""
STAGES = ("dynamo",)
NAMES = ("map", "call_map")


def call_map(self, tx, fn, *seqs, **kwargs):
    calls = zip(*(seq.unpack_var_sequence(tx) for seq in seqs))
    return TupleVariable([fn.call_function(tx, list(args), {}) for args in calls], mutation_type=ValueMutationNew())


BuiltinVariable.call_map = call_map
