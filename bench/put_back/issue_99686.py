"""#99686: the parts of a split, concatenated in another order, are replaced by the input. Mended by #99700.

Undone: the check of the order in torch/_inductor/fx_passes/post_grad.py, is_valid_splitwithsizes_cat.
"""

import operator

from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import filter_nodes

CASE = """
import torch


def f(x):
    a, b, c = torch.split(x, [2, 1, 1], dim=1)
    return torch.cat([b, a, c], dim=1)


def make():
    torch.manual_seed(0)
    return f, (torch.randn(1, 4),)
"""
STAGES = ("post_grad",)
NAMES = ("splitwithsizes_cat_replace", "split_with_sizes", "cat", "aten.cat")


def is_valid(match):
    split, cat = (filter_nodes(match.nodes, op)[0] for op in (post_grad.aten.split_with_sizes, post_grad.aten.cat))
    taken = {node.args[1] for node in filter_nodes(match.nodes, operator.getitem)}
    return split.args[2] == cat.args[1] and taken == set(range(len(split.args[1])))


for entries in post_grad.pass_patterns[2].patterns.values():
    for entry in entries:
        if entry.extra_check is post_grad.is_valid_splitwithsizes_cat:
            entry.extra_check = is_valid
