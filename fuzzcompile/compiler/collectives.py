"""Collectives of a graph that is replayed by one process: the other ranks of a group are imitated.

Rank r of a group is taken to hold the values of this process, times (1 + r) / (1 + its own rank). What collectives mean
does not depend on what the ranks hold, so a rewrite of them that is right for all values is right for these, and one
that leaves a reduction out, doubles it or mixes up ranks is not; reductions of multiples round like any others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.run.ranks import allow_collectives, is_apart
from fuzzcompile.run.tensors import is_wrapper_class, name_collective

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda held: held.sum(0, dtype=held.dtype),
    "avg": lambda held: held.sum(0, dtype=held.dtype) / held.shape[0],
    "max": lambda held: held.amax(0),
    "min": lambda held: held.amin(0),
    "product": lambda held: held.prod(0, dtype=held.dtype),
}
"""What a reduction makes of the values of all ranks, one behind the other in the first dimension."""


@contextlib.contextmanager
def imitate_ranks() -> Iterator[None]:
    """Run collectives of the block without the other processes, if this one leads some and they do not run it too."""
    if not is_apart():
        yield
        return
    with allow_collectives(), _Imitation():  # type: ignore[no-untyped-call]
        yield


class _Imitation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Collection[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if any(map(is_wrapper_class, types)):
            return NotImplemented
        operation = name_collective(func)
        if operation is None:
            return func(*args, **(kwargs or {}))
        if operation in ("wait_tensor", "_wrap_tensor_autograd"):
            return args[0]
        if operation not in _IMITATED:
            raise NotImplementedError(f"{operation} cannot be replayed by one process")
        made = _IMITATED[operation](*args)
        out = (kwargs or {}).get("out")
        return made if out is None else out.copy_(made)


def _hold(value: torch.Tensor, group: Any) -> torch.Tensor:
    """The values of all ranks of a group, one behind the other in a new first dimension."""
    own, size = _find_place(group)
    if value.dtype is torch.bool:
        return torch.stack([value] * size)
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return torch.stack([value + (rank - own) for rank in range(size)])
    return torch.stack([value * ((1 + rank) / (1 + own)) for rank in range(size)])


def _find_place(group: Any) -> tuple[int, int]:
    found = vars(torch.distributed.distributed_c10d)["_resolve_process_group"](group)
    return found.rank(), found.size()


def _all_reduce(value: torch.Tensor, operation: str, group: Any) -> torch.Tensor:
    return REDUCTIONS[operation.lower()](_hold(value, group)).to(value.dtype)


def _all_gather(value: torch.Tensor, size: int, group: Any) -> torch.Tensor:
    return _hold(value, group).flatten(0, 1) if value.dim() else _hold(value, group)


def _reduce_scatter(value: torch.Tensor, operation: str, size: int, group: Any) -> torch.Tensor:
    return _all_reduce(value, operation, group).chunk(size)[_find_place(group)[0]].clone()


def _all_to_all(value: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: Any) -> torch.Tensor:
    """Each rank is taken to send to the others what this one does, as far as the sizes let it."""
    own, size = _find_place(group)
    if len({*received, *sent}) > 1:
        raise NotImplementedError("an uneven exchange cannot be replayed by one process")
    part = value.chunk(size)[own]
    return _hold(part, group).flatten(0, 1)


def _broadcast(value: torch.Tensor, source: int, group: Any) -> torch.Tensor:
    return _hold(value, group)[source]


def _each(one: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    return lambda values, *rest: [one(value, *rest) for value in values]


def _in_place(one: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda value, *rest: value.copy_(one(value, *rest))


_IMITATED: dict[str, Callable[..., Any]] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _in_place(_all_reduce),
    "all_reduce_coalesced": _each(_all_reduce),
    "all_reduce_coalesced_": _each(_in_place(_all_reduce)),
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather,
    "all_gather_into_tensor_coalesced": _each(_all_gather),
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _each(_reduce_scatter),
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "broadcast_": _in_place(_broadcast),
}
