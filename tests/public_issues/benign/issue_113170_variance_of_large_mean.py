# pytorch#113170, variant: variance of numbers with a large mean.
# No bug: cancellation costs the same digits in both algorithms.

import torch
import torch.nn.functional as F

EXPECT = ("rounding",)


def make():
    torch.manual_seed(0)
    return (lambda x: (x.var(-1), x.std(-1), F.layer_norm(x, (256,)))), (torch.randn(8, 256) * 0.01 + 3000.0,)
