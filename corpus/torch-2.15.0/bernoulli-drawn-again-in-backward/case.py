import torch
CONFIG={"inductor":{"fallback_random":True}}
BACKWARD=True
def program(x):
    return torch.bernoulli(x.sigmoid())
def make():
    torch.manual_seed(0)
    return program,(torch.randn(4,8,requires_grad=True),)
