# pytorch#194501: smooth_l1_loss with a negative beta.
# A bug: eager raises; compiled computes.

import torch
import torch.nn.functional as F

EXPECT = ("accepts_invalid",)


def make():
    return (lambda a, b: F.smooth_l1_loss(a, b, beta=-1.0)), (torch.tensor([1.0]), torch.tensor([0.0]))
