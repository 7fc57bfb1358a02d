import torch

size = int(input("size? "))
torch.compile(torch.sin)(torch.ones(size))
