# pytorch#118266: argmax and amax over NaN.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")


def make():
    torch.manual_seed(0)
    return (lambda x: (torch.argmax(torch.log1p(x), -1), torch.amax(torch.log1p(x), -1))), (torch.randn(5, 20) * 3,)
