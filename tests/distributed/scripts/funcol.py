"""Functional collectives called by the program itself."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
group = dist.group.WORLD


@torch.compile
def gather_and_mix(x, w):
    y = torch.nn.functional.gelu(x @ w)
    full = funcol.all_gather_tensor(y, 0, group)
    total = funcol.all_reduce(full.sum(0, keepdim=True), "sum", group)
    part = funcol.reduce_scatter_tensor(full * 2, "sum", 0, group)
    return part + total, full.amax()


torch.manual_seed(dist.get_rank())
x = torch.randn(4, 16)
w = torch.randn(16, 16)
out = gather_and_mix(x, w)
print(out[0].sum())
dist.destroy_process_group()
