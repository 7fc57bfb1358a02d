"""`x.copy_(x.flip(1))` is fused with the flip, and half of the elements are read when they have been overwritten.

Mended by pull request 162316 (which of two loops comes first is forgotten only if they read and write alike). Undone
in torch/_inductor/scheduler.py, `_prune_redundant_deps`.
"""

import inspect

from torch._inductor import scheduler

CASE = """
import torch


def f(x, y):
    x.copy_(x.flip(1))
    y = y.sum(dim=1) + y
    return x + y


def make():
    torch.manual_seed(0)
    return f, (torch.randn(20, 20), torch.randn(20, 20))
"""
STAGES = ("scheduler",)
NAMES = ("prune_redundant_deps", "_prune_redundant_deps", "fusable_weak_dep", "fusion")

source = inspect.getsource(scheduler._prune_redundant_deps)
start = source.index("is_redundant = ")
end = source.index("# These can occur")
check = "is_redundant = name_to_dep_count[name_to_fused_node[op_name].get_name()] > 0\n            "
exec(compile(source[:start] + check + source[end:], scheduler.__file__, "exec"), vars(scheduler))
