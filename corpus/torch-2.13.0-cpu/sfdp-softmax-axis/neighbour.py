import torch


def program(k, q, v):
    scores = q @ k.transpose(-2, -1) * 0.5
    weights = scores.softmax(-1)
    return weights @ v


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2))
