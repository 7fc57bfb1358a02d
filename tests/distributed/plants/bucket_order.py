"""Bucketing of all_gathers puts the ranks' parts in the opposite order."""

import torch
from torch._inductor.fx_passes import bucketing

right = bucketing.all_gather_merge_fn_to_trace


def all_gather_merge_fn_to_trace(values, group, size, *rest):
    made = right(values, group, size, *rest)
    return [torch.cat(whole.chunk(size)[::-1]) for whole in made]


bucketing.all_gather_merge_fn_to_trace = all_gather_merge_fn_to_trace
