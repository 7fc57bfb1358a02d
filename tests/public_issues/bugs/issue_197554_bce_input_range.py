# pytorch#197554, variant: binary_cross_entropy of an input above 1.
# A bug: eager raises; compiled computes.

import torch
import torch.nn.functional as F

EXPECT = ("accepts_invalid",)


def make():
    return (lambda x, t: F.binary_cross_entropy(x, t)), (torch.tensor([1.5, 0.2]), torch.tensor([1.0, 0.0]))
