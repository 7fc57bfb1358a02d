"""A partial sum is averaged where parts are added up, in eager mode as in a compile."""

from torch.distributed.tensor.placement_types import Partial

right = Partial._reduce_value


def _reduce_value(self, tensor, mesh, dimension):
    return right(self, tensor, mesh, dimension) / mesh.size(dimension)


Partial._reduce_value = _reduce_value
