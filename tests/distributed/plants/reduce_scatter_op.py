"""The lowering of reduce_scatter adds up where it should average, and the other way round."""

import torch
from torch._inductor.comm_lowering import register_comm_lowerings
from torch._inductor.lowering import lowerings

register_comm_lowerings()
operator = torch.ops._c10d_functional.reduce_scatter_tensor.default
right = lowerings[operator]


def lower(value, reduction, size, group):
    return right(value, "avg" if reduction == "sum" else "sum", size, group)


lowerings[operator] = lower
