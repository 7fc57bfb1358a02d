# pytorch#130238: dropout in training.
# No bug: only the random numbers differ without fallback_random; with it nothing does.

import torch
import torch.nn.functional as F

EXPECT = ("equal", "rounding")


def make():
    torch.manual_seed(0)
    return (lambda x: F.dropout(torch.sigmoid(x), 0.3, True) * 2), (torch.randn(8, 33),)
