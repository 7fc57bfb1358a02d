"""Lines between the processes beside a script that runs in several: the first rank's says what all of them do.

Nothing of this reaches the script's own processes: they never wait for one another because they are watched. What is
refused in one of them is written to a file, which the others' processes beside it find.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from fuzzcompile.analyses.watch.step_records import WORK, WatchSettings
from fuzzcompile.model.errors import describe_error
from fuzzcompile.run.ranks import RankLost
from fuzzcompile.run.seats import accept_ranks

_POLL = 0.05


class RankLines:
    """The first rank's side: what it asks of the processes beside the other ranks, and what they answer."""

    def __init__(self, lines: list[Connection]) -> None:
        self._lines = lines

    def ask(self, name: str, *args: object) -> None:
        """Have each of the others call its method ``name``; the answers are read by :meth:`collect`."""
        for rank, line in enumerate(self._lines, 1):
            with contextlib.suppress(OSError):  # it is gone, as `collect` will say
                line.send((rank, name, args))

    def collect(self) -> list[Any]:
        """The answers to what was asked last, in the order of the ranks.

        Raises:
            RankLost: one of them is gone, or failed.
        """
        return [self._receive(rank, line) for rank, line in enumerate(self._lines, 1)]

    def _receive(self, rank: int, line: Connection) -> object:
        try:
            failed, answer = line.recv()
        except (EOFError, OSError):
            _lose(rank, "has ended")
        if failed:
            _lose(rank, f"failed ({answer})")
        return answer

    def dismiss(self) -> None:
        """Let the others end."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.send(None)
                line.close()


def _lose(rank: int, how: str) -> NoReturn:
    raise RankLost(f"the process beside rank {rank} {how}")


def answer_first(settings: WatchSettings, step: int, asked: object) -> None:
    """Do what the first rank's process says, by methods of ``asked``, until it has said all or is gone."""
    with contextlib.suppress(EOFError, OSError):
        line = connect(settings, f"line{step}", lambda: find_refusal(settings, step))
        if line is None:
            return
        while (order := line.recv()) is not None:
            _, name, args = order
            try:
                line.send((False, getattr(asked, name)(*args)))
            except Exception as error:  # ours, of any kind
                line.send((True, describe_error(error, 200)))


def find_refusal(settings: WatchSettings, step: int) -> str | None:
    """Return the reason why some rank could not take a sample of a step, if it has said one by now."""
    for rank in range(settings.size):
        path = settings.at(rank).refused(step)
        if path.exists():
            return f"rank {rank}: {path.read_text(encoding='utf-8')}"
    return None


@contextlib.contextmanager
def listen(settings: WatchSettings, name: str) -> Iterator[socket.socket]:
    """A socket at which the other ranks' processes find the first one's."""
    with _open_place(settings, name) as (place, address), socket.socket(socket.AF_UNIX) as listener:
        place.unlink(missing_ok=True)
        listener.bind(address)
        listener.listen(settings.size)
        listener.settimeout(_POLL)
        try:
            yield listener
        finally:
            place.unlink(missing_ok=True)


def accept(
    listener: socket.socket, settings: WatchSettings, refuse: Callable[[], str | None] = lambda: None
) -> list[Connection]:
    """The lines to the other ranks' processes in their order.

    Raises:
        RankLost: one of them did not come within the settings' seconds, or ``refuse`` says why none need wait.
    """
    deadline = time.monotonic() + settings.seconds

    def check(missing: int) -> None:
        if (why := refuse()) is not None:
            raise RankLost(why)
        if time.monotonic() > deadline:
            raise RankLost(f"rank {missing} did not come to this step within {settings.seconds:.0f} s")

    return accept_ranks(listener, settings.size, check)


def connect(
    settings: WatchSettings, name: str, refuse: Callable[[], str | None] = lambda: None, *, once: bool = False
) -> Connection | None:
    """The line to the first rank's process, once it listens; None where it does not in the settings' seconds.

    ``refuse`` says why it will not; with ``once`` it listens by now, or no more.
    """
    deadline = time.monotonic() + settings.seconds
    while time.monotonic() < deadline and refuse() is None:
        with _open_place(settings, name) as (place, address), contextlib.suppress(OSError):
            if once and not place.exists():
                return None
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(address)
            line = Connection(connected.detach())
            line.send_bytes(str(settings.rank).encode())
            return line
        time.sleep(_POLL)
    return None


@contextlib.contextmanager
def _open_place(settings: WatchSettings, name: str) -> Iterator[tuple[Path, str]]:
    """The place of a socket, and a short address of it: that of a socket may have about a hundred characters."""
    folder = settings.folder / WORK
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder / name, f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)
