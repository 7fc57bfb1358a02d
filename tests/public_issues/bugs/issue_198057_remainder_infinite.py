# pytorch#198057: float remainder with infinite divisors and large quotients, eight elements or more.
# A bug: NaN for an infinite divisor and 0 for large quotients; the scalar tail is right.

import torch

EXPECT = ("nonfinite", "miscompile")


def make():
    i = float("inf")
    a = torch.tensor([5.5, -5.5, 0.0, 1e20, 2147483648.0, 7.0, 1.0, -0.0] * 2)
    b = torch.tensor([i, -i, i, 3.0, 3.0, 0.7, 0.1, 1.0] * 2)
    return (lambda a, b: torch.remainder(a, b)), (a, b)
