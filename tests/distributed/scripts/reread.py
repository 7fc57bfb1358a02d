"""A reduction whose input is read after it, with kernels reordered so that they overlap with collectives."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
group = dist.group.WORLD


@torch.compile(options={"reorder_for_compute_comm_overlap": True})
def reread(x, w):
    own = torch.tanh(x @ w)
    total = funcol.all_reduce(own, "sum", group)
    return total.cos() + own.exp(), own - total.mean()


torch.manual_seed(dist.get_rank())
x, w = torch.randn(64, 64), torch.randn(64, 64)
reread(x, w)
dist.destroy_process_group()
