"""FlexAttention of a query that is expanded over the batch: all batches are written to one place.

Mended by pull request 139516 (the output's strides are dense). Undone in torch/_inductor/kernel/flex/flex_cpu.py:
the output has the strides of the query.
"""

from torch._inductor.kernel.flex import flex_cpu

CASE = """
import torch
from torch.nn.attention.flex_attention import flex_attention


def model(q, k, v):
    return flex_attention(q.expand(2, -1, -1, -1), k, v)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(1, 2, 128, 16), torch.randn(2, 2, 128, 16), torch.randn(2, 2, 128, 16))
"""
STAGES = ("lowering",)
NAMES = ("flex_attention",)

flex_cpu.infer_dense_strides = lambda size, strides: strides
