"""Tensors of which each process of a group has a part: what this process holds of one, and how it is laid out.

A ``DTensor`` says by its placements what the parts are to the whole; a tensor that a collective still fills is waited
for. Of the classes that are meant, none is imported: a program without them has none.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

_MODULE = "torch.distributed.tensor"
_MESH = "torch.distributed.device_mesh"
_PENDING = "torch.distributed._functional_collectives"
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")


def find_sharded_class() -> type[Any] | tuple[()]:
    """The class of ``DTensor``s, for ``isinstance``; none before a program imports it."""
    loaded = sys.modules.get(_MODULE)
    return () if loaded is None else loaded.DTensor


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Return whether a value is a ``DTensor``."""
    return isinstance(value, find_sharded_class())


def is_partial(value: object) -> bool:
    """Return whether a value is a ``DTensor`` of which each process has an addend."""
    return is_sharded(value) and any(placement.is_partial() for placement in value.placements)


def is_pending(value: object) -> bool:
    """Return whether a value is a tensor that a collective may still fill; any operator on it waits for that."""
    loaded = sys.modules.get(_PENDING)
    return loaded is not None and isinstance(value, loaded.AsyncCollectiveTensor)


def read_part(value: T) -> T | torch.Tensor:
    """The part of a tensor that this process holds, in its own memory; anything but a ``DTensor`` is its own."""
    return value._local_tensor if is_sharded(value) else value


def read_own(tensor: torch.Tensor) -> torch.Tensor:
    """The detached part of a tensor that this process holds, once the collectives that fill it have ended."""
    part = read_part(tensor.detach())
    return part.clone() if is_pending(part) else part


def lay_out(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The ``DTensor`` like another of which this process holds ``part``; the part where ``like`` is none."""
    if not is_sharded(like):
        return part
    mesh, shape, stride = like.device_mesh, like.shape, like.stride()
    made: torch.Tensor = type(like).from_local(part, mesh, like.placements, run_check=False, shape=shape, stride=stride)
    return made


def is_in_group() -> bool:
    """Return whether this process has formed a group with others, or by itself."""
    loaded = sys.modules.get("torch.distributed")
    return loaded is not None and loaded.is_available() and bool(loaded.is_initialized())


def divide_like(whole: torch.Tensor, tensor: DTensor) -> torch.Tensor:
    """The part of ``whole`` that this process has of it where it is laid out as ``tensor`` is; all of it if partial."""
    loaded = sys.modules[_MODULE]
    placements = [loaded.Replicate() if placed.is_partial() else placed for placed in tensor.placements]
    part: torch.Tensor = loaded.distribute_tensor(whole, tensor.device_mesh, placements, src_data_rank=None).to_local()
    return part


def drop_meshes(values: Sequence[Any]) -> list[Any]:
    """Values without the meshes that stand behind the parts of tensors where AOTAutograd has taken these apart."""
    loaded = sys.modules.get(_MESH)
    return [value for value in values if loaded is None or not isinstance(value, loaded.DeviceMesh)]


def forget_layouts() -> None:
    """Forget which layouts operators give: torch keeps them with their meshes, whose groups have ended by now.

    A mesh of the same form that is made later is equal to the old one, and is compiled with the group of that.
    """
    if _MODULE not in sys.modules:
        return
    caches = importlib.import_module(f"{_MODULE}.debug")
    for name in (
        "_clear_sharding_prop_cache",
        "_clear_python_sharding_prop_cache",
        "_clear_fast_path_sharding_prop_cache",
    ):
        getattr(caches, name, lambda: None)()


def find_rank() -> int:
    """The rank of this process among those that run the program; 0 without others."""
    return torch.distributed.get_rank() if is_in_group() else 0


def holds_on_any_rank(holds: bool) -> bool:
    """Return whether something holds in any of the processes that run the program, each of which asks at this place."""
    if not is_in_group() or torch.distributed.get_world_size() == 1:
        return holds
    asked = torch.tensor([float(holds)])
    torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
    return bool(asked)


def read_values(tensor: torch.Tensor) -> torch.Tensor:
    """Comparable values of a tensor: the part that this process holds, and of partial results the whole.

    The parts of a partial result have no meaning of their own; adding them up is a collective of all its processes.
    """
    if not is_sharded(tensor):
        return tensor.clone() if is_pending(tensor) else tensor
    held: torch.Tensor = tensor.full_tensor() if is_partial(tensor) else tensor.to_local()
    return read_values(held)


def adopt_dtype(tensor: torch.Tensor) -> None:
    """Give a ``DTensor`` the dtype that the part which this process holds has by now, wherever it is referred to.

    It is what `torch.utils.swap_tensors` does, which refuses tensors with weak references: the compiler's, which go by
    the Python object, stay right. The tensor stays as it is where something outside of Python holds it.
    """
    if not is_sharded(tensor) or not tensor.is_leaf or tensor.dtype == tensor._local_tensor.dtype:
        return
    made: Any = lay_out(tensor._local_tensor, tensor).detach().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=tensor.requires_grad)  # of the same class
    with contextlib.suppress(RuntimeError):
        torch._C._swap_tensor_impl(tensor, made)
        tensor._spec = made._spec  # the part stays itself, which FSDP refers to, and not a view of it


def describe_placements(tensor: torch.Tensor) -> str:
    """The placements of a ``DTensor`` on its mesh, as in ``DTensor Shard(dim=0), Replicate()``; empty for others."""
    if not is_sharded(tensor):
        return ""
    # Tracing may leave stand-ins for placements, whose addresses change from run to run.
    return f"DTensor {_ADDRESS.sub('', ', '.join(map(repr, tensor.placements)))}"
