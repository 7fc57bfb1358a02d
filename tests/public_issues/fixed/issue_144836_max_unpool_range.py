# pytorch#144836: max_unpool2d with an index out of range.
# No bug any more; right in torch 2.13: eager raises, and compiled too.

import torch
import torch.nn.functional as F

EXPECT = ("invalid",)


def make():
    return (lambda x, i: F.max_unpool2d(x, i, 2)), (torch.rand(1, 1, 2, 2), torch.tensor([[[[0, 2], [8, 160]]]]))
