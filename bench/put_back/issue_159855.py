"""The sliding window of a key cache, shifted by one and copied back: elements are read when they have been overwritten.

Mended by pull request 162316 (which of two loops comes first is forgotten only if they read and write alike). Undone
by the plant of #162410. The report's program is Gemma 2; this is its cache's update, which the C++ loop spoils where
the part of one thread ends and that of another begins.
"""

import runpy
from pathlib import Path

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

runpy.run_path(str(Path(__file__).with_name("issue_162410.py")))
