"""FSDP2 over tensor-parallel blocks, on a mesh of two dimensions."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.w1 = nn.Linear(dim, 4 * dim)
        self.w2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)))


dist.init_process_group("gloo")
world = dist.get_world_size()
mesh = init_device_mesh("cpu", (max(1, world // 2), min(2, world)), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = nn.Sequential(FeedForward(), FeedForward())
for layer in model:
    parallelize_module(layer, mesh["tp"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
model = torch.compile(model)
torch.manual_seed(mesh["dp"].get_local_rank())
x = torch.randn(4, 16)
model(x).sum().backward()
dist.destroy_process_group()
