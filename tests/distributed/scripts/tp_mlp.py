"""A tensor-parallel feed-forward block, whose mesh forms the group."""

import os

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.w1 = nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)
        self.w3 = nn.Linear(dim, 4 * dim, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = FeedForward()
model = parallelize_module(model, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel(), "w3": ColwiseParallel()})
model = torch.compile(model)
torch.manual_seed(1)
x = torch.randn(2, 8, 16)
out = model(x)
out.sum().backward()
