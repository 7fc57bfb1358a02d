import torch
from torch import nn

BACKWARD = True


class Model(nn.Module):
    def forward(self, x):
        a = x.diagonal(0, -2, -1)
        b = a.unfold(-1, 2, 2)
        c = x.repeat(1, 1, 2)
        d = c.unfold(-2, 2, 1)
        e = d[..., 1:, :]
        return e, b


CALLS = [
    (torch.randn(1, 8, 24, requires_grad=True),),
    (torch.randn(1, 8, 24, requires_grad=True),),
]


def make():
    torch.manual_seed(983245)
    x = torch.randn(1, 7, 24, requires_grad=True)
    return Model().eval(), (x,)
