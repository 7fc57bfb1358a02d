# pytorch#169253: a list of the class is appended to.
# No bug any more; right in torch 2.13.

import torch
from torch import nn

EXPECT = ("equal",)


class Model(nn.Module):
    items = []

    def forward(self, x):
        Model.items.append(x * 2)
        return x + 1


def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(2, 4),)


def run(model, inputs):
    Model.items.clear()
    o = model(*inputs)
    model(*inputs)
    return o, len(Model.items)
