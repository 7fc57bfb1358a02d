# pytorch#169779: index_select with index -1.
# A bug: eager raises; compiled reads the last row.

import torch

EXPECT = ("accepts_invalid",)


def make():
    return (lambda x, i: torch.index_select(x, 0, i)), (torch.arange(12.0).reshape(4, 3), torch.tensor([0, -1]))
