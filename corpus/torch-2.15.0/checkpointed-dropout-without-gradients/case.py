import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
GRAD = "enabled"
def program(x):
    return checkpoint(lambda a: F.dropout(a.sin(), 0.5), x, use_reentrant=False)
def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 8),)
