"""`torch.isin` of a number has shape (1,) instead of () with `assume_unique=True`.

Mended by pull request 171272 (the mask is reshaped). Undone in torch/_decomp/decompositions.py, `isin_sorting`.
"""

import inspect

from torch._decomp import decompositions

CASE = """
import torch


def model(others):
    return torch.ops.aten.isin(-3.5, others, assume_unique=True, invert=True)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(10),)
"""
STAGES = ("decomposition",)
NAMES = ("aten.isin", "isin")

source = inspect.getsource(decompositions.isin_sorting)
source = source.replace("mask[0 : elements.numel()].reshape(elements.shape)", "mask[0 : elements.numel()]")
exec(compile(source, decompositions.__file__, "exec"), vars(decompositions))
