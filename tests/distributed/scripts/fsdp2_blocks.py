"""FSDP2 over each block of a stack and over the whole model, compiled whole; the second block alone has a ReLU."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim, act):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.act = act

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Head(nn.Module):
    def forward(self, x, table):
        return x @ table.t()


class Model(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, act) for act in (nn.GELU(), nn.ReLU(), nn.SiLU()))
        self.table = nn.Parameter(torch.randn(4, dim))
        self.head = Head()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x, self.table)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = Model()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
compiled = torch.compile(model)
torch.manual_seed(dist.get_rank())
compiled(torch.randn(4, 16)).square().sum().backward()
dist.destroy_process_group()
