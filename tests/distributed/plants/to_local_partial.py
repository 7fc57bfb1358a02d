"""The gradient of DTensor.to_local is taken for a term of a sum where each process has all of it, under compile."""

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributed.tensor import Partial, Replicate, _api

right = _api._ToTorchTensor.backward


def backward(ctx, gradient):
    if ctx.grad_placements is None and isinstance(gradient, (FunctionalTensor, torch._subclasses.FakeTensor)):
        placements = ctx.dtensor_spec.placements
        ctx.grad_placements = tuple(Partial() if placed == Replicate() else placed for placed in placements)
    return right(ctx, gradient)


_api._ToTorchTensor.backward = staticmethod(backward)
