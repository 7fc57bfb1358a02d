"""Attention of tensors from a channels-last convolution is wrong, as the kernel takes the last dimension to be dense.

Mended by pull request 122083 (the layout of a CPU's attention inputs is constrained). Undone in
torch/_inductor/lowering.py, `sdpa_constraint`: on a CPU it leaves its arguments as they are.
"""

import inspect

from torch._inductor import lowering

CASE = """
import math

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_conv = torch.nn.Conv2d(4, 4, 1)
        self.k_conv = torch.nn.Conv2d(4, 4, 1)
        self.v_conv = torch.nn.Conv2d(4, 4, 1)

    def forward(self, x):
        q, k, v = (conv(x).permute(0, 2, 1, 3) for conv in (self.q_conv, self.k_conv, self.v_conv))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        return torch.matmul(torch.nn.functional.softmax(scores, dim=-1), v).flatten()


def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(1, 4, 2, 2),)
"""
STAGES = ("lowering", "joint_graph")
NAMES = ("_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention", "sdpa_constraint")

function = inspect.unwrap(lowering.sdpa_constraint)
source = inspect.getsource(function)
source = source.replace("return ir.ExternKernel.require_stride_order(arg, stride_order)\n", "return arg\n")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(lowering), scope)
function.__code__ = scope["sdpa_constraint"].__code__
