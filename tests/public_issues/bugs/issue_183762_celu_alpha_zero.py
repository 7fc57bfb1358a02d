# pytorch#183762: celu_ with alpha=0.
# A bug: eager raises; compiled computes.

import torch

EXPECT = ("accepts_invalid",)


def make():
    return (lambda x: torch.celu_(x.clone(), 0.0)), (torch.tensor([[-2.0, -0.5, 0.0], [1.0, 3.0, -4.0]]),)
