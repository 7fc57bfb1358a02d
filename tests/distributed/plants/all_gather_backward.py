"""The lowering of all_gather puts the ranks' parts in the opposite order, in backward graphs only."""

import torch
from torch._inductor.comm_lowering import mark_as_skip_wait, register_comm_lowerings
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V

register_comm_lowerings()
collectives, aten = torch.ops._c10d_functional, torch.ops.aten
right = lowerings[collectives.all_gather_into_tensor.default]


def lower(value, size, group):
    made = right(value, size, group)
    if not V.graph.is_backward:
        return made
    made = lowerings[collectives.wait_tensor.default](made)
    length = value.get_size()[0]
    parts = [lowerings[aten.slice.Tensor](made, 0, rank * length, (rank + 1) * length) for rank in range(size)]
    made = lowerings[aten.clone.default](lowerings[aten.cat.default](parts[::-1], 0))
    made.realize()
    mark_as_skip_wait(made)
    return made


lowerings[collectives.all_gather_into_tensor.default] = lower
