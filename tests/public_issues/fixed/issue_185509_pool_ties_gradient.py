# pytorch#185509, variant: the gradient of max_pool2d with ties.
# No bug any more; right in torch 2.13.

import torch
import torch.nn.functional as F

EXPECT = ("equal",)

BACKWARD = True


def make():
    torch.manual_seed(0)
    return (lambda x: F.max_pool2d(F.relu(x), 3, 1, 1)), (torch.randn(2, 3, 8, 8, requires_grad=True),)
