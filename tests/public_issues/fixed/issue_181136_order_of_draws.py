# pytorch#181136: the order of three random draws.
# No bug any more; right in torch 2.13.

import torch
import torch.nn.functional as F

EXPECT = ("equal", "rounding")


def f(x):
    a = torch.randn(2, 4, 4, 4)
    b = torch.randn(2, 3, 4, 4)
    c = torch.randn(4, 3, 3, 3)
    return a + F.conv2d(b, c, padding=1) + x


def make():
    return f, (torch.zeros(1),)
