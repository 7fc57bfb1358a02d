import torch


def program(k, v, q):
    scores = q @ k.transpose(-2, -1) * 0.5
    weights = scores.softmax(-1)
    return weights @ v


def make():
    torch.manual_seed(0)
    k = torch.randn(1, 1, 2, 2)
    v = torch.randn(1, 1, 2, 2)
    q = torch.tensor([[[[0.4965595602989197, 0.5452359914779663], [float("nan"), float("nan")]]]])
    return program, (k, v, q)
