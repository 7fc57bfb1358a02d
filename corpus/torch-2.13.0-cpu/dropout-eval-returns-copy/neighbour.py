import torch
import torch.nn.functional as F


def program(x):
    same_copy = F.dropout(x, training=False).clone()
    same_copy += 0.5
    return x


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 1, 1),)
