"""#161763: neg of a uint8 constant is negative within an expression, because the constant is folded as a number without a
width. Mended by #161922.

Undone: the wrapping of integers in torch/_inductor/index_propagation.py, TypedExpr.
"""

from torch._inductor import index_propagation

CASE = """
import torch


def f(x):
    c = torch.tensor(7, dtype=torch.uint8)
    return c + x, torch.neg(c), torch.neg(c) + x


def make():
    torch.manual_seed(0)
    return f, (torch.randn(2, 2),)
"""
STAGES = ("lowering",)
NAMES = ("neg", "aten.neg", "index_propagation", "IndexPropagation")


def as_number(self):
    if self.is_constant():
        self.expr = index_propagation.dtype_to_type(self.dtype)(self.expr)


index_propagation.TypedExpr.__post_init__ = as_number
