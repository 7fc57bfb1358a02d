# pytorch#168186: under autocast to bfloat16 a product, a chunk and an addition.
# No bug: eager rounds the product to bfloat16 before it is added; compiled does not.

import torch
from torch import nn

EXPECT = ("rounding", "precision_casts")


class M(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.p, self.g = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.p(x) * self.g(x)
            a, b = torch.chunk(y, 2, dim=-1)
            return a + b


def make():
    torch.manual_seed(0)
    return M().eval(), (torch.randn(2, 64, 128),)
