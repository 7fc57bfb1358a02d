"""Sequence parallelism around a tensor-parallel feed-forward block."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Layer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = Layer()
parallelize_module(
    model,
    mesh,
    {
        "norm": SequenceParallel(sequence_dim=1),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=True),
    },
)
step = torch.compile(model, backend="inductor")
torch.manual_seed(5 + dist.get_rank())
x = torch.randn(2, 4, 16)
out = step(x)
out.square().sum().backward()
dist.destroy_process_group()
