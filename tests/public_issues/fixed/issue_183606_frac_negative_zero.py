# pytorch#183606: 1 / frac(-0.0).
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    return (lambda x: 1.0 / torch.frac(x)), (torch.tensor([-0.0, -0.0, -0.0, 1.5]),)
