import torch

while True:
    torch.compile(lambda x: x)
