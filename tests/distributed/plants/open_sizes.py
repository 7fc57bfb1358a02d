"""Products are wrong in graphs that leave a size open: those of a later call."""

import torch
from torch._inductor import lowering

right = lowering.lowerings[torch.ops.aten.mul.Tensor]


def mul(*args, **kwargs):
    made = right(*args, **kwargs)
    return right(made, 1.25) if any(not str(size).isdigit() for size in made.get_size()) else made


lowering.lowerings[torch.ops.aten.mul.Tensor] = mul
