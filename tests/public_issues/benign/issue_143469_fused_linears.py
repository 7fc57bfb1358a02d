# pytorch#143469: split, several linear layers and cat.
# No bug: merged matrix products add up in another order.

import torch
import torch.nn.functional as F
from torch import nn

EXPECT = ("equal", "rounding")


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(torch.randn(50, 250)) for _ in range(2)])
        self.b = nn.ParameterList([nn.Parameter(torch.randn(50)) for _ in range(2)])

    def forward(self, x):
        parts = torch.split(x, 250, dim=1)
        return torch.cat([F.relu(F.linear(a, w, b)) for a, w, b in zip(parts, self.w, self.b, strict=True)], dim=1)


def make():
    torch.manual_seed(0)
    return M().eval(), (torch.randn(50, 500),)
