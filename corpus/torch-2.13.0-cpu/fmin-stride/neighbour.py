import torch


def program(x, other):
    return torch.fmin(x, other)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2))
