import torch
import torch.nn.functional as F


def program(rows):
    return F.max_pool1d(rows, 3, 1, 1)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2),)
