"""The place of a process among those that run a script together, as ``torchrun`` tells it."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Seat:
    """The place of this process among those that run a script; ``port`` is where they meet, None for any free one.

    ``patience``: seconds for which a collective waits for the others; torch's own default is half an hour.
    """

    rank: int = 0
    size: int = 1
    port: int | None = None
    patience: float = 60.0

    def environment(self) -> dict[str, str]:
        """The variables that ``torchrun`` sets on one machine."""
        rank, size = str(self.rank), str(self.size)
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        port = str(find_free_port() if self.port is None else self.port)
        return {**numbers, "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


_NPROC = re.compile(r"^NPROC *= *(\d{1,2})\b", re.MULTILINE)


def read_size(source: str) -> int | None:
    """The number of processes that a text asks for as ``NPROC`` at module level; None for one."""
    asked = _NPROC.search(source)
    return int(asked[1]) if asked is not None and int(asked[1]) > 1 else None


def find_free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run_in_seats(count: int, run: Callable[[Mapping[str, str]], T]) -> list[T]:
    """Call ``run`` with the variables of each of so many processes, side by side; what it gives, by rank."""
    port = find_free_port()
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda rank: run(Seat(rank, count, port).environment()), range(count)))


def forms_group(source: str) -> bool:
    """Return whether a program may form a group of processes, by its text."""
    return re.search(r"torch\.distributed|import distributed|DistributedDataParallel", source) is not None


def accept_ranks(listener: socket.socket, size: int, check: Callable[[int], None]) -> list[Connection]:
    """The lines to the others of ``size`` processes, in the order of their ranks, which each says first.

    ``check`` is given the first rank that is missing, whenever the listener's time is over, and raises where none need
    be waited for.
    """
    lines: dict[int, Connection] = {}
    while missing := [rank for rank in range(1, size) if rank not in lines]:
        check(missing[0])
        with contextlib.suppress(TimeoutError):
            accepted, _ = listener.accept()
            accepted.setblocking(True)
            line = Connection(accepted.detach())
            with contextlib.suppress(EOFError, OSError):  # it has ended meanwhile
                lines[int(line.recv_bytes())] = line
    return [line for _, line in sorted(lines.items())]
