# pytorch#195582: BatchNorm2d, a view, and a pad that cuts off.
# A bug: a loop of 50 is split by 9 for a division in an index, and the last five elements are never written.

import torch
from torch import nn

EXPECT = ("miscompile", "nonfinite", "nondeterministic")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 50, (2, 2))
        self.bn = nn.BatchNorm2d(50)
        self.fc = nn.Linear(50, 10)

    def forward(self, x):
        x = self.bn(self.conv(x))
        x = x.view(x.shape[0], -1)
        return self.fc(nn.functional.pad(x, (0, 50 - x.shape[-1])))


def make():
    torch.manual_seed(420)
    return Model().eval(), (torch.randn(3, 1, 4, 4),)
