# pytorch#96064: gradients and running statistics of a batch norm in training.
# No bug any more; right in torch 2.13.

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = ("equal", "rounding")


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3)
        self.b = nn.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.b(self.c(x)))


BACKWARD = True


def make():
    torch.manual_seed(0)
    return M().train(), (torch.randn(2, 3, 8, 8),)
