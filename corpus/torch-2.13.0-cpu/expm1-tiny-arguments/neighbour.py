import torch
import torch.nn.functional as F


def program(x):
    mul = x / 1e-30
    return F.celu(mul)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 2),)
