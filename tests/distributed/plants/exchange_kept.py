"""The lowering of all_to_all_single gives each process its own values back."""

import torch
from torch._inductor.comm_lowering import register_comm_lowerings
from torch._inductor.lowering import lowerings

register_comm_lowerings()
lowerings[torch.ops._c10d_functional.all_to_all_single.default] = lambda value, *rest: lowerings[
    torch.ops.aten.clone.default
](value)
