# pytorch#197807: logcumsumexp of a tensor of uint8 without dimensions.
# A bug: eager raises, and so does aot_eager; Inductor's lowering returns what it is given.

import torch

EXPECT = ("accepts_invalid",)


def make():
    return lambda a: torch.logcumsumexp(a, dim=0), (torch.tensor(0, dtype=torch.uint8),)
