"""Groups of processes in forks: forks of all ranks of a program meet anew, and run its collectives among themselves.

A fork has none of the threads by which its parent's groups talk, and must not write to their connections. Each group
gets another backend in its place, so that whatever refers to the group (DDP's reducer, a device mesh, the graphs of a
compiled program, by name) goes on with it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.run.sharded_tensors import is_in_group

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
