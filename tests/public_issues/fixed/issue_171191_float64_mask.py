# pytorch#171191: a float64 mask makes the attention weights float64, the values are float32.
# No bug any more; right in torch 2.13: eager raises, and compiled too.

import torch
import torch.nn.functional as F

EXPECT = ("invalid",)


def f(q, k, v, m):
    w = torch.bmm(q, k.transpose(1, 2)) + m
    return torch.bmm(F.softmax(w, -1), v)


def make():
    torch.manual_seed(0)
    return f, tuple(torch.randn(4, 8, 16) for _ in range(3)) + (torch.zeros(4, 8, 8, dtype=torch.float64),)
