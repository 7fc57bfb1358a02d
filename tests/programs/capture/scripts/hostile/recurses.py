import torch


def deeper():
    return deeper()


deeper()
torch.compile(torch.sin)(torch.ones(3))
