# pytorch#185517: bfloat16 plus and times Python numbers.
# No bug: differences of one rounding to bfloat16.

import torch

EXPECT = ("rounding",)


def make():
    torch.manual_seed(0)
    return (lambda x: (x + 0.3, x - 1.7, x * 0.7)), (torch.randn(200).bfloat16(),)
