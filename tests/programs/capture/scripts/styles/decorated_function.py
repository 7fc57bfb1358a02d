import torch


@torch.compile
def gather(x, y):
    rows = torch.arange(x.size(0) - 4, device=x.device) + 3
    return x[rows] - y[rows]


print(gather(torch.rand(64, 16, device="cpu"), torch.rand(64, 16)).shape)
