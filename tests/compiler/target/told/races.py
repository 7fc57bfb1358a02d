import torch


def reverse_sum(x):
    x.index_put_((torch.arange(x.size(0)),), x * 2.0)
    x.add_(x.flip(0))
    return x


def make():
    torch.manual_seed(0)
    return reverse_sum, (torch.rand(64, 96),)
