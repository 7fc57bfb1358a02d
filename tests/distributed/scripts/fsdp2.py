"""FSDP2 over the whole model, compiled whole."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(MLP(16), MLP(16))
fully_shard(model, mesh=mesh)
compiled = torch.compile(model)
torch.manual_seed(dist.get_rank())
x = torch.randn(4, 16)
loss = compiled(x).pow(2).sum()
loss.backward()
print("loss", loss.item())
dist.destroy_process_group()
