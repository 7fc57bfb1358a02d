# pytorch#195422, variant: eval dropout hands on a tensor of the closure, which is written, and a second call reads
# it.
# A bug: the write is lost when compiled, and the second result is wrong.

import torch
import torch.nn.functional as F

EXPECT = ("aliasing", "miscompile")


def make():
    store = torch.zeros(4)

    def f(x):
        y = F.dropout(store, 0.5, False)
        y += x
        return store * 2

    return f, (torch.arange(4.0),)


CALLS = [(torch.ones(4),)]
