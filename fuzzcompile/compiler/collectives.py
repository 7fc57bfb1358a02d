"""Collectives of a graph that is replayed by one process, for which ranks are imitated, and groups in forks.

Rank r of a group is taken to hold the values of this process, times (1 + r) / (1 + its own rank). What collectives mean
does not depend on what the ranks hold, so a rewrite of them that is right for all values is right for these, and one
that leaves a reduction out, doubles it or mixes up ranks is not; reductions of multiples round like any others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.run.ranks import allow_collectives, is_apart
from fuzzcompile.run.sharded_tensors import is_in_group
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


# Groups of processes in forks: forks of all ranks of a program meet anew, and run its collectives among themselves.
#
# A fork has none of the threads by which its parent's groups talk, and must not write to their connections. Each group
# gets another backend in its place, so that whatever refers to the group (DDP's reducer, a device mesh, the graphs of a
# compiled program, by name) goes on with it.

_CPU = torch.device("cpu")
_kept: list[object] = []  # the parent's backends, whose ends would wait for threads that a fork does not have


def find_size() -> int | None:
    """The number of processes of the program's group; None if it has formed none."""
    return torch.distributed.get_world_size() if is_in_group() else None


def refuse_groups() -> str | None:
    """Return the reason why forks cannot form the program's groups anew; None if they can."""
    kinds = {kind for kind, _ in _world().pg_map.values()}
    for group in _world().pg_map:
        try:
            name = group._get_backend(_CPU).name()
        except RuntimeError:
            return f"a group of the script's processes runs on {', '.join(sorted(kinds))}; forks meet on gloo alone"
        if name != "gloo":
            return f"a group of the script's processes runs on {name}; forks meet on gloo alone"
    return None


def rejoin_groups(place: Path, seconds: float) -> None:
    """Form the groups of this process anew, in a fork, as such forks of all ranks do with the same new file ``place``.

    Each collective waits for the others that many seconds at most.

    Raises:
        RuntimeError: another rank did not come in time.
    """
    distributed: Any = torch.distributed
    world, patience = _world(), timedelta(seconds=seconds)
    store = distributed.FileStore(str(place), distributed.get_world_size())
    store.set_timeout(patience)
    for group, (kind, _) in list(world.pg_map.items()):
        own = distributed.PrefixStore(world.pg_names[group], store)
        made = distributed.ProcessGroupGloo(distributed.PrefixStore("gloo", own), group.rank(), group.size(), patience)
        _kept.append(group._get_backend(_CPU))
        # Of the type gloo it has one, which it would go on to use.
        group._register_backend(_CPU, distributed.ProcessGroup.BackendType.CUSTOM, made)
        world.pg_map[group] = kind, own
    _kept.append(store)


def share_text(key: str, text: str | None, seconds: float) -> str:
    """What the first rank says under a key: it says ``text``, the others wait for it so long, by the group's store.

    Raises:
        RuntimeError: the first rank did not say it in time.
    """
    store: Any = vars(torch.distributed.distributed_c10d)["_get_default_store"]()
    if text is not None:
        store.set(key, text)
        return text
    store.wait([key], timedelta(seconds=seconds))
    said: bytes = store.get(key)
    return said.decode()


def _world() -> Any:
    return vars(torch.distributed.distributed_c10d)["_world"]
