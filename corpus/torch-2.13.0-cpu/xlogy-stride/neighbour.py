import torch


def program(attn_output, other):
    return torch.xlogy(attn_output, other)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2), torch.randn(1, 2, 2))
