"""What reads a tensor of one element after `index_add` sees what is added, not the sum, as both became one loop.

Mended by pull request 110677 (no fusion with a node whose mutation is read), from whose test the program is. Undone in
torch/_inductor/scheduler.py, `Scheduler.mode_requires_synchronization`: an atomic write is read like any other.
"""

from torch._inductor.scheduler import Scheduler

CASE = """
import torch


def model(tensor, index, source):
    return tensor.index_add(0, index, source, alpha=2.0) / 2


def make():
    torch.manual_seed(0)
    return model, (torch.rand(1, dtype=torch.float64), torch.tensor([0]), torch.rand(1, dtype=torch.float64))
"""
STAGES = ("scheduler",)
NAMES = ("aten.index_add", "index_add", "index_put", "aten.index_put", "can_fuse_vertical", "fusion", "div", "aten.div")

Scheduler.mode_requires_synchronization.__code__ = (lambda self, mode: False).__code__
