import torch


def program(x, h, w, u):
    return torch.gru(x, h, [w, u, w, u], False, 2, 1.0, True, False, False)[0]


def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 1, 4), torch.zeros(2, 1, 4), torch.randn(12, 4), torch.randn(12, 4))
