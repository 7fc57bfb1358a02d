import torch


def program(x, narrow):
    return torch.cat([x, narrow])


def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2, 2), torch.randn(0, 2, 2))
