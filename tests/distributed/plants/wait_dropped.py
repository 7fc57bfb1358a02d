"""The lowering of wait_tensor does not wait."""

import torch
from torch._inductor.comm_lowering import register_comm_lowerings
from torch._inductor.lowering import lowerings

register_comm_lowerings()
lowerings[torch.ops._c10d_functional.wait_tensor.default] = lambda value: value
