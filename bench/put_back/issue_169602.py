"""#169602: the range of a remainder by Python's rule is that of C's. Mended by #169610.

Undone: python_mod has a rule of its own (torch/utils/_sympy/value_ranges.py).
"""

from torch.utils._sympy.value_ranges import SymPyValueRangeAnalysis

CASE = """
import torch

DYNAMIC = True


def f(x):
    return x + 1 if x.shape[0] % -3 < 0 else x - 1


def make():
    return f, (torch.zeros(4),)
"""
STAGES = ("dynamo",)
NAMES = ("%", "python_mod", "PythonMod", "mod")

SymPyValueRangeAnalysis.python_mod = SymPyValueRangeAnalysis.mod
