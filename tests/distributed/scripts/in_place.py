"""Statistics of a batch that is spread over the processes, reduced in place as in synchronised batch norm."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")


@torch.compile
def normalise(x, scale):
    total = torch.cat([x.mean(0), x.square().mean(0)])
    dist.all_reduce(total, op=dist.ReduceOp.MAX)
    mean, square = total.chunk(2)
    return (x - mean) * torch.rsqrt((square - mean.square()).abs() + 1e-5) * scale


torch.manual_seed(dist.get_rank())
normalise(torch.randn(8, 16), torch.rand(16))
dist.destroy_process_group()
