"""The lowering of all_reduce_ leaves the reduction out."""

import torch
from torch._inductor.comm_lowering import register_comm_lowerings
from torch._inductor.lowering import lowerings

register_comm_lowerings()
lowerings[torch.ops._c10d_functional.all_reduce_.default] = lambda value, reduction, group: value
