"""A model under DDP that is larger than a bucket, so that dynamo splits its graph."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(256, 1100), nn.Linear(1100, 256), nn.Linear(256, 8)

    def forward(self, x):
        return self.head(torch.tanh(self.down(torch.tanh(self.up(x)))))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.compile(DDP(MLP(), bucket_cap_mb=1))
torch.manual_seed(dist.get_rank())
model(torch.randn(4, 256)).square().mean().backward()
dist.destroy_process_group()
