"""Bucketing of all_reduces gives the first result of a bucket for the last, and the other way round."""

from torch._inductor.fx_passes import bucketing

right = bucketing.all_reduce_merge_fn_to_trace


def all_reduce_merge_fn_to_trace(*arguments):
    return right(*arguments)[::-1]


bucketing.all_reduce_merge_fn_to_trace = all_reduce_merge_fn_to_trace
