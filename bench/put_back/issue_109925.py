"""#109925: the cumsum of a constant of booleans or integers has their type, and wraps. Mended by #109960.

Undone: the promotion to int64 in torch/_inductor/fx_passes/post_grad.py, pointless_cumsum_replacement.
"""

from torch._inductor.fx_passes import post_grad

CASE = """
import torch


def f(x):
    return torch.full((300,), 1, dtype=torch.uint8).cumsum(0) + x.to(torch.uint8)


def make():
    return f, (torch.zeros(300),)
"""
STAGES = ("post_grad",)
NAMES = ("pointless_cumsum_replacement", "cumsum", "aten.cumsum")

post_grad.is_integer_dtype = lambda dtype: False
post_grad.is_boolean_dtype = lambda dtype: False
