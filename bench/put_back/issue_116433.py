"""A view with a dimension of one element is returned with another stride than eager's (0 instead of 2).

Mended by pull request 122239 (strides that address nothing are matched at the output). Undone in
torch/_inductor/graph.py, `GraphLowering.output`; so is `try_match_insignificant_strides` where 2.13 also calls it.
"""

from torch._inductor import ir

CASE = """
import torch


def f(x):
    return (x + 1).view(-1, 1, 2)


def make():
    return f, (torch.arange(8, dtype=torch.float32),)
"""
STAGES = ("lowering",)
NAMES = ("try_match_insignificant_strides", "match_insignificant_strides", "output", "aten.view", "view")

ir.try_match_insignificant_strides = lambda tensor, strides: tensor
