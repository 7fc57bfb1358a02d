# pytorch#195422, variant: eval dropout hands on inputs in dictionaries of a list, which are then written.
# A bug: the writes reach the inputs in eager and copies compiled.

import torch
import torch.nn.functional as F

EXPECT = ("aliasing", "miscompile")


def f(batch):
    for d in batch:
        h = F.dropout(d["h"], 0.1, False)
        h += 1
    return [d["x"] * 2 for d in batch]


def make():
    return f, ([{"h": torch.zeros(3), "x": torch.ones(3)}, {"h": torch.ones(2), "x": torch.ones(2)}],)
