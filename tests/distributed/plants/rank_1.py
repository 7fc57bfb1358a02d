"""The lowering of relu is wrong in every process but the first."""

import os

import torch
from torch._inductor.lowering import lowerings

right = lowerings[torch.ops.aten.relu.default]


def lower(value):
    made = right(value)
    return lowerings[torch.ops.aten.mul.Tensor](made, 1.01) if os.environ.get("RANK") == "1" else made


lowerings[torch.ops.aten.relu.default] = lower
