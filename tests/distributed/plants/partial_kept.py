"""A partial DTensor becomes a replicated one without a reduction, while a compile traces it."""

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributed.tensor.placement_types import Partial

right = Partial._reduce_value


def _reduce_value(self, tensor, mesh, dimension):
    inner = tensor.elem if hasattr(tensor, "elem") else tensor
    traced = isinstance(tensor, FunctionalTensor) or isinstance(inner, torch._subclasses.FakeTensor)
    return tensor if traced else right(self, tensor, mesh, dimension)


Partial._reduce_value = _reduce_value
