"""A shard becomes a whole tensor with its parts in reverse, while a compile traces it."""

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributed.tensor.placement_types import Shard

right = Shard._to_replicate_tensor


def _to_replicate_tensor(self, tensor, mesh, dimension, shape):
    made = right(self, tensor, mesh, dimension, shape)
    traced = isinstance(tensor, (FunctionalTensor, torch._subclasses.FakeTensor))
    return made.flip(self.dim) if traced else made


Shard._to_replicate_tensor = _to_replicate_tensor
