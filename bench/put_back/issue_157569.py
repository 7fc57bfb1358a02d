"""NumPy's index with an integer and a list apart from each other puts the indexed dimension first; torch's does not.

Mended by pull request 157676 (the integer becomes a list). Undone in torch/_numpy/_ndarray.py,
`_numpy_compatible_indexing`.
"""

from torch._numpy import _ndarray

CASE = """
import numpy as np
import torch


def forward(x):
    return x[0, :, [0, 1, 2]]


print(torch.compile(forward)(np.arange(24).reshape(2, 3, 4)))
"""
STAGES = ("dynamo",)
NAMES = ("getitem", "index", "aten.index", "ndarray[")

_ndarray._numpy_compatible_indexing.__code__ = (lambda index: index).__code__
