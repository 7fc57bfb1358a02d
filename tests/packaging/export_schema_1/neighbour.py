import torch


def program(new_zeros, new_ones, new_ones_1):
    return torch.addmm(new_zeros, new_ones, new_ones_1)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1), torch.randn(1, 2), torch.randn(2, 1))
