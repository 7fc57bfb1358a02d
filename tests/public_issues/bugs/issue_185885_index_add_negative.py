# pytorch#185885: index_add with index -1.
# A bug: eager raises; compiled adds to the last row.

import torch

EXPECT = ("accepts_invalid",)


def make():
    return (lambda x, i, s: torch.index_add(x, 0, i, s)), (torch.zeros(4, 3), torch.tensor([0, -1]), torch.ones(2, 3))
