# pytorch#198057, variant: float remainder with large finite quotients: 1e20 % 3.
# A bug: eager gives the exact remainder, compiled 0.

import torch

EXPECT = ("miscompile",)


def make():
    a = torch.tensor([1e20, 2147483648.0, 7.0, 1.0, 1e10, 16777217.0, 5e8, 3e7] * 2)
    b = torch.tensor([3.0, 3.0, 0.7, 0.1, 7.0, 5.0, 3.0, 0.9] * 2)
    return (lambda a, b: a % b), (a, b)
