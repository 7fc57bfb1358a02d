import torch
import torch.nn.functional as F


def program(x):
    return F.celu(x, 1.0)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 1, 1),)
