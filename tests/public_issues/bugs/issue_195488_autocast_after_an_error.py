# pytorch#195488: an error within autocast, which the program catches.
# A bug: the region stays entered, as dynamo's graph has no try and finally. Both sides raise.

import torch

EXPECT = ("miscompile",)


@torch.compile(backend="eager", fullgraph=True)
def f(x, at):
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        return x.index_select(0, at)


x, at = torch.randn(4, 4), torch.tensor([99])
for _ in range(3):
    try:
        f(x, at)
    except IndexError:
        pass
