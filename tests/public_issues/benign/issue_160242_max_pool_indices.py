# pytorch#160242, variant: max_pool2d with indices of a computed tensor.
# No bug: sigmoid differs by an ulp; the indices do not.

import torch
import torch.nn.functional as F

EXPECT = ("rounding", "equal")


def make():
    torch.manual_seed(5)
    return (lambda x: F.max_pool2d(torch.sigmoid(x) * x, 2, return_indices=True)), (torch.randn(2, 3, 9, 9),)
