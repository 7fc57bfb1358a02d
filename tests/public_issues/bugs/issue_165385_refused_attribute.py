"""#165385: Python refuses to set an attribute, which the program expects; dynamo sets it behind the call, and raises."""

import torch

EXPECT = ["runtime_error"]


class Plain:
    pass


@torch.compile(backend="eager", fullgraph=True)
def set_reserved(x, plain):
    try:
        plain.__weakref__ = None
    except AttributeError:
        x = x + 1
    return x


print(set_reserved(torch.ones(3), Plain()))
