"""#153552: in a compiled function, `s |= t` makes a new set and leaves the old one as it was. Mended by #154063.

Undone: torch/_dynamo/variables/sets.py, the operators in place of SetVariable (nb_inplace_or_impl and its like) are those
that make a new set again.
"""

from torch._dynamo.variables.sets import SetVariable

CASE = """
import torch


def f(x):
    first = {1, 2}
    second = first
    second |= {3}
    return x + len(first)


def make():
    return f, (torch.zeros(3),)
"""
STAGES = ("dynamo",)
NAMES = ("ior", "__ior__", "nb_inplace_or", "set")

SetVariable.nb_inplace_or_impl = SetVariable.nb_or_impl
SetVariable.nb_inplace_subtract_impl = SetVariable.nb_subtract_impl
SetVariable.nb_inplace_and_impl = SetVariable.nb_and_impl
SetVariable.nb_inplace_xor_impl = SetVariable.nb_xor_impl
