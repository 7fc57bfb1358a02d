"""A training step under DDP, compiled with its backward pass by compiled autograd."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch._dynamo.config.compiled_autograd = True
torch._dynamo.config.optimize_ddp = "python_reducer"


@torch.compile
def step(model, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for _ in range(2):
    loss = step(model, torch.randn(8, 16), torch.randn(8, 4))
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
dist.destroy_process_group()
