# pytorch#195422, variant: eval dropout hands on a tensor of the closure, which is then written.
# A bug: the write reaches that tensor in eager and a copy compiled.

import torch
import torch.nn.functional as F

EXPECT = ("aliasing", "miscompile")


def make():
    store = torch.zeros(4)

    def f(x):
        y = F.dropout(store, 0.5, False)
        y += x
        return x * 2

    return f, (torch.arange(4.0),)
