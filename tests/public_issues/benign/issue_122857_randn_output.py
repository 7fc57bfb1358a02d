# pytorch#122857: random numbers are the output.
# No bug: with the compiler's own generator any report of this kind differs; the streams are the same here.

import torch

EXPECT = ("equal", "rounding", "unstable")


def make():
    return (lambda x: torch.randn_like(x) * 0.1 + x), (torch.zeros(6, 7),)
