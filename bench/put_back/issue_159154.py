"""A buffer that two loops under one outer loop share is as long as the last dimension, not as the loops' range.

Mended by pull request 160857 (it is as long as the range). Undone in torch/_inductor/codegen/cpp.py,
`CppScheduling.codegen_outer_loop_node`.
"""

import inspect
import textwrap

from torch._inductor.codegen import cpp

CASE = """
import torch


def func(xs, ls):
    temp = torch.exp(-torch.einsum("i...,i->i...", xs, ls))
    total = torch.einsum("i...->i", temp)
    return torch.einsum("i,i...->i...", 1 / total, temp)


def make():
    return func, (torch.ones(5, 1, 32, 32), torch.ones(5))
"""
STAGES = ("codegen",)
NAMES = ("codegen_outer_loop_node", "local_buffer", "OuterLoopFusedSchedulerNode")

source = textwrap.dedent(inspect.getsource(cpp.CppScheduling.codegen_outer_loop_node))
start = source.index("local_buffer_size = get_call_ranges(scheduler_node)[")
source = source[:start] + "local_buffer_size = global_buffer_layout.size[" + source[start:].partition("[")[2]
scope = {}
exec(compile(source, cpp.__file__, "exec"), vars(cpp), scope)
cpp.CppScheduling.codegen_outer_loop_node = scope["codegen_outer_loop_node"]
