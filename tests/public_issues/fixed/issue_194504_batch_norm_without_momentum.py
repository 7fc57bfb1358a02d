# pytorch#194504: BatchNorm1d(momentum=None) in training.
# No bug any more; right in torch 2.13.

import torch
from torch import nn

EXPECT = ("equal", "rounding")


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.BatchNorm1d(8, momentum=None)

    def forward(self, x):
        return self.b(x) * 2


def make():
    torch.manual_seed(0)
    return M().train(), (torch.randn(16, 8),)


torch.manual_seed(1)
CALLS = [(torch.randn(16, 8),)]
