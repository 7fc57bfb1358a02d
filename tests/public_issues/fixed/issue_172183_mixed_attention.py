# pytorch#172183: attention with half weights and float values.
# No bug any more; right in torch 2.13: eager raises, and compiled too.

import torch
from torch import nn

EXPECT = ("invalid",)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        def h(t):
            return t.view(2, -1, 4, 16).transpose(1, 2)

        q, k, v = h(self.q(x)), h(self.k(x)), h(self.v(x))
        a = torch.softmax((q @ k.transpose(-2, -1) / 4.0).float(), -1).half()
        return a @ v


def make():
    torch.manual_seed(0)
    return M().eval(), (torch.randn(2, 8, 64),)
