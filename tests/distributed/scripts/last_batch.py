"""A training loop under DDP whose last batch is smaller, as a data set ends."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(FeedForward())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = torch.compile(model)
torch.manual_seed(1 + dist.get_rank())
for size in (6, 6, 6, 3):
    x = torch.randn(size, 8)
    loss = (step(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
