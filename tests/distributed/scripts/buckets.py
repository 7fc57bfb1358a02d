"""Collectives of several tensors, which Inductor is told to put into buckets; one input is read after its reduction."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
group = dist.group.WORLD
OPTIONS = {
    "bucket_all_gathers_fx": "all",
    "bucket_reduce_scatters_fx": "all",
    "bucket_all_reduces_fx": "all",
}


@torch.compile(options=OPTIONS)
def mix(x, w):
    first, second = torch.tanh(x @ w), torch.sigmoid(x)
    gathered = [funcol.all_gather_tensor(y, 0, group) for y in (first, second)]
    summed = [funcol.all_reduce(y.cos(), "sum", group) for y in (first, second)]
    parts = [funcol.reduce_scatter_tensor(y.exp(), "sum", 0, group) for y in gathered]
    return gathered, summed[0] - 2 * summed[1], parts[0] + 3 * parts[1]


torch.manual_seed(dist.get_rank())
x, w = torch.randn(4, 16), torch.randn(16, 16)
mix(x, w)
dist.destroy_process_group()
