# pytorch#189518, variant: position ids from the cumsum of a float mask.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    torch.manual_seed(0)
    return (lambda m: (m.cumsum(-1) * m).long()), ((torch.rand(4, 64) > 0.3).float(),)
