"""#169010: a compiled function does not find a dictionary's entry whose key is a functools.partial. Mended by #169016.

Undone: torch/_dynamo/variables/functions.py, FunctoolsPartialVariable is hashed as the partial that is made of it each time
again, so that no two hashes are alike.
"""

import itertools

from torch._dynamo.variables.functions import FunctoolsPartialVariable

CASE = """
from functools import partial

import torch

FULLGRAPH = True


def add(x, y):
    return x + y


def f(x):
    scales = {}
    key = partial(add, x=1)
    scales[key] = 5
    return x * scales[key]


def make():
    return f, (torch.ones(4),)
"""
STAGES = ("dynamo",)
NAMES = ("partial", "functools.partial", "FunctoolsPartialVariable")

hashes = itertools.count(1)
FunctoolsPartialVariable.hash_impl = lambda self, tx: (next(hashes), False)
