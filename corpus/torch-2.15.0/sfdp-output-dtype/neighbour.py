import torch


def program(q, k, v):
    scores = q.permute(0, 2, 1, 3) * 2.0 @ k.permute(0, 2, 1, 3).transpose(-2, -1)
    weights = scores.softmax(-1)
    return weights.to(torch.float16) @ v.permute(0, 2, 1, 3).to(torch.float16)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2, 2, 2), torch.randn(2, 2, 2, 2), torch.randn(2, 2, 2, 2))
