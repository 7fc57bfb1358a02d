# pytorch#106060: a buffer is replaced in forward.
# No bug any more; right in torch 2.13.

import torch
from torch import nn

EXPECT = ("equal",)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.arange(4.0))

    def forward(self, x):
        self.b = self.b.to(x) + 1
        return self.b * x


def make():
    torch.manual_seed(0)
    return M(), (torch.rand(4),)


CALLS = [(torch.ones(4),), (torch.ones(4),)]
