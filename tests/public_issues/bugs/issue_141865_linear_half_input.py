# pytorch#141865: a float32 Linear is given a half input.
# A bug: eager raises; compiled computes.

import torch
from torch import nn

EXPECT = ("accepts_invalid",)


def make():
    torch.manual_seed(0)
    return nn.Linear(1, 1).eval(), (torch.randn(1, 1, dtype=torch.float16),)
