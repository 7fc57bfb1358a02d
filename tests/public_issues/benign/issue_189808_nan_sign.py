# pytorch#189808: the square root of negative numbers.
# No bug: the NaNs differ in their sign bit, which is no value.

import torch

EXPECT = ("equal", "rounding")


def make():
    return (lambda x: torch.sqrt(x)), (torch.tensor([-1.0, 4.0, -2.0, 9.0, 2.0, 3.0, -5.0, 0.0]),)
