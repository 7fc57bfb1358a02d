# pytorch#193757: binary_cross_entropy with targets above 1.
# A bug: eager raises; compiled computes.

import torch
import torch.nn.functional as F

EXPECT = ("accepts_invalid",)


def make():
    return (lambda t: F.binary_cross_entropy(torch.ones_like(t), t)), (torch.ones(4, 4) * 1.5,)
