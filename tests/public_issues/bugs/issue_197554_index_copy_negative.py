# pytorch#197554, variant: index_copy with index -1.
# A bug: eager raises; compiled writes the last row.

import torch

EXPECT = ("accepts_invalid",)


def make():
    return (lambda x, i, s: torch.index_copy(x, 0, i, s)), (torch.zeros(4, 3), torch.tensor([-1]), torch.ones(1, 3))
