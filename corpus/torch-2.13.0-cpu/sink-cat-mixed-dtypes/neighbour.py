import torch


def program(x, gt):
    joined = torch.cat([x, gt])
    return joined.relu()


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2), torch.randn(1, 2, 2))
