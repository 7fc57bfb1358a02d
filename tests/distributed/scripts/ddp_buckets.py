"""A model under DDP that is larger than a bucket, so that dynamo splits its graph."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1100), nn.GELU(), nn.Linear(1100, 256), nn.GELU(), nn.Linear(256, 8))
model = torch.compile(DDP(model, bucket_cap_mb=1))
torch.manual_seed(dist.get_rank())
model(torch.randn(4, 256)).square().mean().backward()
dist.destroy_process_group()
