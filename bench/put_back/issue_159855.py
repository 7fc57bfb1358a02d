"""The sliding window of a key cache, shifted by one and copied back: elements are read when they have been overwritten.

Mended by pull request 162316 (which of two loops comes first is forgotten only if they read and write alike). Undone
in torch/_inductor/scheduler.py, `_prune_redundant_deps`. The report's program is Gemma 2; this is its cache's update,
which the C++ loop spoils where the part of one thread ends and that of another begins.
"""

import inspect

from torch._inductor import scheduler

CASE = """
import torch


def update(cache, state):
    shifted = cache.roll(-1, dims=-2)
    shifted[:, :, -1:] = state
    cache.copy_(shifted)


def model(keys, values, key_state, value_state):
    update(keys, key_state)
    update(values, value_state)
    return keys, values


def make():
    torch.manual_seed(0)
    caches = [torch.randn(1, 1, 16384, 256) for _ in range(2)]
    return model, (*caches, torch.randn(1, 1, 1, 256), torch.randn(1, 1, 1, 256))
"""
STAGES = ("scheduler",)
NAMES = ("prune_redundant_deps", "_prune_redundant_deps", "fusable_weak_dep", "fusion")

source = inspect.getsource(scheduler._prune_redundant_deps)
start = source.index("is_redundant = ")
end = source.index("# These can occur")
check = "is_redundant = name_to_dep_count[name_to_fused_node[op_name].get_name()] > 0\n            "
exec(compile(source[:start] + check + source[end:], scheduler.__file__, "exec"), vars(scheduler))
