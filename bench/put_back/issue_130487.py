"""What a custom operator writes to an argument is lost, as Inductor gave it a copy, for its strides.

Mended by pull requests 133452 and 133639 (what is written to the copy is written back). Undone in
torch/_inductor/graph.py, `GraphLowering.propagate_mutation`. The report has no program; this is of the second request.
"""

from torch._inductor.graph import GraphLowering

CASE = """
import torch


@torch.library.custom_op("put_back::copy_to", mutates_args={"target"})
def copy_to(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def model(x):
    full = torch.full([3], 7.0)
    copy_to(full, x)
    return torch.mul(full, full)


def make():
    return model, (torch.arange(3.0),)
"""
STAGES = ("lowering",)
NAMES = ("copy_to", "put_back.copy_to", "propagate_mutation")

GraphLowering.propagate_mutation = lambda self, *arguments: None
