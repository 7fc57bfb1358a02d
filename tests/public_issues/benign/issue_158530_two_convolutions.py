# pytorch#158530: two convolutions and a sum.
# No bug: sums in another order.

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = ("rounding",)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 3, padding=1)
        self.w = nn.Parameter(torch.randn(16, 16, 3, 3))
        self.b = nn.Parameter(torch.randn(16))

    def forward(self, x):
        return F.relu(F.conv2d(F.relu(self.c(x)), self.w, self.b, padding=1)).sum((2, 3))


def make():
    torch.manual_seed(0)
    return M().eval(), (torch.randn(2, 3, 16, 16),)
