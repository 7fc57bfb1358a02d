import torch

f = torch.compile(lambda x: x * 2 + 1)
x = torch.arange(4.0)
while True:
    x = f(x)
