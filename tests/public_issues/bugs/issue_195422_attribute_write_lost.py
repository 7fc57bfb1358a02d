# pytorch#195422, variant: eval dropout hands on a plain tensor attribute, which is then written.
# A bug: the write reaches the attribute in eager and a copy compiled; the output does not show it.

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = ("aliasing", "miscompile")


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.zeros(4)

    def forward(self, x):
        y = F.dropout(self.cache, 0.5, False)
        y += x
        return x * 2


def make():
    return M().eval(), (torch.arange(4.0),)
