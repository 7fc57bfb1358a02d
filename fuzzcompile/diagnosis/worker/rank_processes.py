"""The other processes that a case with ``--nproc`` runs in: workers of the worker that judges it."""

from __future__ import annotations

import contextlib
import math
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from multiprocessing.connection import Connection
from pathlib import Path

from fuzzcompile.model.errors import CaseError, format_message
from fuzzcompile.model.judge_task import JudgeTask, NamedFunction
from fuzzcompile.run.pool.worker import say
from fuzzcompile.run.pool.worker_pool import WorkerPool
from fuzzcompile.run.ranks import Leader, RankLost, RankRefused, lead_ranks, take_seat
from fuzzcompile.run.seats import Seat, accept_ranks, find_free_port

_JOIN = NamedFunction("fuzzcompile.diagnosis.worker.judge:join_ranks")
# Seconds that the others may take longer than the first to load the case, as they import torch first, and that a
# collective waits for them; less where the limit of the case is short, so that it is said what was waited for.
_LOADING_SECONDS, _COLLECTIVE_SECONDS = 90.0, 60.0
_LONGEST_PLACE = 60  # characters of a folder's name: that of a line within it may have about a hundred
# Seconds in which the others have left a case that the first has left; less where the case itself failed: they are
# where the first was, or wait for it.
_LEAVING_SECONDS, _FAILING_SECONDS = 10.0, 2.0
_POLL_SECONDS, _STARTING_POLL_SECONDS = 0.2, 0.02  # between two looks at the others while the first waits for them
# The other processes of the last case, which the next one takes over: starting them takes 5 s.
_kept: list[WorkerPool] = []


@contextlib.contextmanager
def seat_ranks(
    task: JudgeTask, open_pool: Callable[[int], WorkerPool], *, most: float | None = None
) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Have the other processes of a task load the case; this one is the first of them in the block.

    ``open_pool`` starts so many workers, which stay for the next task where all have left this one; one that takes
    ``most`` seconds is ended. What is yielded is entered once the case is loaded here too: from then on all run what
    this process runs.

    Raises:
        RankLost: one of them ended, or did not come as far.
    """
    if task.nproc is None:
        yield contextlib.nullcontext
        return
    port = find_free_port()
    ends = math.inf if task.seconds is None else time.monotonic() + task.seconds
    with contextlib.ExitStack() as stack:
        place = None if len(tempfile.gettempdir()) <= _LONGEST_PLACE else "/tmp"
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzzcompile-ranks-", dir=place))
        listener, address = stack.enter_context(socket.socket(socket.AF_UNIX)), str(Path(folder, "line"))
        listener.bind(address)
        listener.listen(task.nproc)
        listener.settimeout(_POLL_SECONDS)
        pool = _take_pool(task.nproc - 1, open_pool)
        ends_well = stack.enter_context(_keep_or_kill(pool))
        patience = min(_COLLECTIVE_SECONDS, math.inf if task.seconds is None else task.seconds / 2)
        seats = [Seat(rank, task.nproc, port, patience) for rank in range(1, task.nproc)]
        joining = [
            pool.schedule(_JOIN, (task, seat, address), label=f"rank {seat.rank}", time_limit=most) for seat in seats
        ]
        _await_start(pool, joining)
        stack.enter_context(take_seat(Seat(0, task.nproc, port, patience)))
        try:
            yield lambda: _lead(listener, joining, ends, ends_well)
        except Exception as error:
            if isinstance(error, CaseError) and not wait(joining, timeout=_FAILING_SECONDS).not_done:
                ends_well += joining
            if not isinstance(error, RankLost | RankRefused):
                _blame_ended(joining, error)
            raise


def _take_pool(workers: int, open_pool: Callable[[int], WorkerPool]) -> WorkerPool:
    """The processes that the last task left, if there are so many; others are ended, and new ones started."""
    if _kept and _kept[-1].capacity == workers:
        return _kept.pop()
    while _kept:
        _kept.pop().kill_workers()
    say(f"starting {workers} more processes")
    return open_pool(workers)


def _await_start(pool: WorkerPool, joining: Sequence[Future[None]]) -> None:
    """Wait until the processes run, or cannot be started: the patience of collectives is not for that."""
    ends = time.monotonic() + _LOADING_SECONDS
    while time.monotonic() < ends and not (
        all(worker.ready for worker in pool.workers()) or any(future.done() for future in joining)
    ):
        time.sleep(_STARTING_POLL_SECONDS)


@contextlib.contextmanager
def _keep_or_kill(pool: WorkerPool) -> Iterator[list[Future[None]]]:
    """Keep the processes of a pool behind the block if all tasks that it appends end, by the case's fault at most."""
    ended: list[Future[None]] = []
    try:
        yield ended
    finally:
        done, waiting = wait(ended, timeout=_LEAVING_SECONDS)
        if done and not waiting and all(isinstance(future.exception(), CaseError | None) for future in done):
            _kept.append(pool)
        else:
            pool.kill_workers()  # whatever they wait for


@contextlib.contextmanager
def _lead(
    listener: socket.socket, joining: Sequence[Future[None]], ends: float, ends_well: list[Future[None]]
) -> Iterator[None]:
    def explain(rank: int) -> str | None:
        ended = joining[rank - 1]
        return _describe_end(ended) if ended.done() else None

    leader = Leader(_accept(listener, joining, ends), explain)
    try:
        with lead_ranks(leader):
            yield
    finally:
        if leader.lost is None or not wait(joining, timeout=_FAILING_SECONDS).not_done:
            ends_well += joining


def _accept(listener: socket.socket, joining: Sequence[Future[None]], ends: float) -> list[Connection]:
    """The lines to the other processes, in the order of their ranks, once all have loaded the case."""
    say("waiting for the other processes to come as far")
    waited = time.monotonic()
    ends = min(ends, waited + _LOADING_SECONDS)

    def check(missing: int) -> None:
        for rank, future in enumerate(joining, 1):
            if future.done():
                raise _make_loss(f"Rank {rank} did not come as far as the first", future)
        if time.monotonic() > ends:
            raise RankLost(
                f"Rank {missing} never reached a compiled call, {time.monotonic() - waited:.0f} s after the first did: "
                "let it come as far, or raise --timeout."
            )

    return accept_ranks(listener, len(joining) + 1, check)


def _describe_end(future: Future[None]) -> str:
    error = future.exception() if not future.cancelled() else None
    return "its process ended" if error is None else format_message(error).removesuffix(".")


def _blame_ended(joining: Sequence[Future[None]], error: Exception) -> None:
    """Say of an error here that another process had ended before, if one had: this one may have waited for it."""
    for rank, future in enumerate(joining, 1):
        if future.done() and (future.cancelled() or future.exception() is not None):
            raise _make_loss(f"Rank {rank} ended", future) from error


def _make_loss(what: str, ended: Future[None]) -> RankLost | RankRefused:
    """The error that says what became of a process: one of the script's own, if that is why."""
    own = not ended.cancelled() and isinstance(ended.exception(), CaseError)
    return (RankRefused if own else RankLost)(f"{what}: {_describe_end(ended)}.")
