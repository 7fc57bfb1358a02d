import torch
CONFIG = {"inductor": {"fallback_random": True}}
def program(x):
    return x.t().clone().bernoulli_(0.4)
def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 8),)
