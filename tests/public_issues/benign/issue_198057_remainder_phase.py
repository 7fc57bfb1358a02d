# pytorch#198057, variant: sin(t % 2 pi) for moderate t.
# No bug: quotients are small enough for the vectorised remainder; only rounding is left.

import torch

EXPECT = ("rounding",)


def make():
    return (lambda t: torch.sin(t % 6.283185307179586)), (torch.linspace(0, 1e4, 4000),)
