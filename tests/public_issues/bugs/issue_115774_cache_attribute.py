# pytorch#115774, variant: a written cache is returned as clone() and the next call writes into that clone.
# A bug: compiled hands out the buffer itself, so the first result changes with the second call.

import torch
from torch import nn

EXPECT = ("aliasing", "miscompile")


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.tensor([0, 0])

    def forward(self, x, pos):
        self.cache[pos] = x
        return self.cache.clone()


def make():
    return M(), (torch.tensor([2]), torch.tensor([0]))


CALLS = [(torch.tensor([1]), torch.tensor([1]))]
