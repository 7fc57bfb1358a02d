import torch


def make():
    torch.manual_seed(0)
    return torch.special.bessel_j0, (torch.randn(4, 5).half(),)
