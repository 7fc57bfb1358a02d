import torch
from torch import nn

MODE = "max-autotune"


class Model(nn.Module):
    def forward(self, x):
        a = x == x
        b = a.to(torch.int8)
        c = a.clone()
        c[:2] = a
        d = b @ b.transpose(-1, -2)
        e = x.amin((-2, -1), keepdim=True)
        return e, d


def make():
    torch.manual_seed(258259)
    x = torch.randn(1, 11, 16, dtype=torch.float16) * 1e-6
    return Model().eval(), (x,)
