# pytorch#115774, variant: the caller keeps the clone of a KV cache over the next call.
# A bug: in eager a clone is a snapshot; compiled returns the cache, and the snapshot changes.

import torch
from torch import nn

EXPECT = ("aliasing", "miscompile")


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))

    def forward(self, x, pos):
        self.cache[pos] = x
        return self.cache.clone()


def make():
    return M(), (torch.tensor([2.0]), torch.tensor([0]))


def run(model, inputs):
    a = model(*inputs)
    b = model(inputs[0] + 1, inputs[1] + 1)
    return a, b
