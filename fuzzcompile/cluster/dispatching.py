"""Assigns tasks to Dask workers: each to one with a free slot, and to another one if that worker is lost.

Everything here runs on one thread, in the event loop of the connection. Dask could choose the workers itself, by
resources that they get when they are admitted, but a task that has no such worker for a moment is never scheduled
again when one that is there already gets the resource, and a lost worker counts against the tasks that wait on it as
against those that ran (distributed 2026.8). Tasks wait here, therefore, and go to Dask when a slot is free for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fuzzcompile.cluster.messages import Call, Reply
from fuzzcompile.execution.failures import WorkerCrashed, WorkerStartFailed
from fuzzcompile.worker.lost import unblamed
from fuzzcompile.worker.tasks import Surroundings

if TYPE_CHECKING:
    from distributed import Client
    from distributed.client import Future as DaskFuture

MOST_LOST = 3
"""A task that has run on so many lost Dask workers may be what ends them: it is not run again."""


class ClusterFuture(Future[Any]):
    """The future of a task; ``environment`` is that of the worker that ran it, once it has ended."""

    environment: dict[str, object] | None = None


@dataclass(eq=False)
class Errand:
    """A task that waits for a worker or runs on one.

    ``attempt`` counts how often it was sent; ``lost`` are the workers that it was lost with, and ``left`` is what
    their processes left of it. It does not run on the machines ``not_on`` while there are others.
    """

    call: Call
    label: str
    future: ClusterFuture
    on_left: Callable[[str, str], object] | None = None
    not_on: frozenset[str] = frozenset()
    attempt: int = 0
    left: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    since: float = 0.0
    sent: DaskFuture | None = None

    @property
    def key(self) -> str:
        """The name of the task in Dask, beginning with its label, by which the dashboard groups tasks."""
        return f"{_slug(self.label)}-{self.call.campaign}-{self.call.number:x}.{self.attempt}"

    def begin(self) -> bool:
        """Mark the future as running; return False if it is done, or was cancelled, and notify its waiters then."""
        if self.future.done() and not self.future.cancelled():
            return False
        return self.future.running() or self.future.set_running_or_notify_cancel()

    def settle(self, settle: Callable[[ClusterFuture], object]) -> None:
        """Set the future's result or exception, unless it was settled already."""
        with contextlib.suppress(InvalidStateError):
            settle(self.future)

    def fail(self, error: Exception) -> None:
        """Set the future's exception, even if the task has not begun."""
        if self.begin():
            self.settle(lambda future: future.set_exception(error))

    def recall(self) -> None:
        """Release the Dask future: the answer of the worker that has the task is ignored."""
        if self.sent is not None:
            self.sent.release()
        self.sent = None


@dataclass(eq=False)
class Member:
    """A Dask worker that was admitted; ``asked`` is the ``time.monotonic()`` of the last query of its tasks."""

    address: str
    slots: int
    surroundings: Surroundings
    running: dict[int, Errand] = field(default_factory=dict)
    asked: float = field(default_factory=time.monotonic)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self.slots - len(self.running)

    def tell(self, left: Mapping[int, Mapping[str, str]]) -> None:
        """Store and pass on intermediate results of the running tasks, by task number."""
        for number, texts in left.items():
            errand = self.running.get(number)
            if errand is not None:
                errand.left.update(texts)
                if errand.on_left is not None:
                    for name, text in texts.items():
                        errand.on_left(name, text)

    @property
    def machine(self) -> str:
        """The identifier of its machine."""
        return str(self.surroundings.environment.get("machine", "unknown"))


class Dispatcher:
    """Sends tasks to members and settles their futures.

    Args:
        doubt: called with a member that could not run a task, the error of its start if there is one, and True if
            the worker is gone. It drops the member.
    """

    def __init__(self, doubt: Callable[[Member, Exception | None, bool], None]) -> None:
        self._doubt = doubt
        self._waiting: deque[Errand] = deque()
        self._client: Client | None = None
        self.members: dict[str, Member] = {}

    def connect(self, client: Client) -> None:
        """Send tasks by this client from now on."""
        self._client = client
        self.place()

    def disconnect(self) -> int:
        """Stop sending tasks, forget the members, and return the number of running tasks that will begin anew."""
        self._client = None
        return sum(self.drop(*self.members.values(), blame=False))

    def put(self, errand: Errand) -> None:
        """Send a task when a slot is free."""
        self._waiting.append(errand)
        self.place()

    def add(self, member: Member) -> None:
        """Send tasks to this worker too."""
        self.members[member.address] = member
        self.place()

    def drop(self, *members: Member, blame: bool) -> list[int]:
        """Drop workers, and return how many tasks of each begin anew. ``blame``: a task may have ended its worker.

        Workers that are lost together are dropped together, so that none of them gets a task of another one.
        """
        again: list[list[Errand]] = []
        for member in members:
            if self.members.get(member.address) is member:
                del self.members[member.address]
            running, member.running = list(member.running.values()), {}
            again.append([errand for errand in running if self._again(errand, member, blame)])
        self._waiting.extendleft(reversed([errand for errands in again for errand in errands]))
        self.place()
        return [len(errands) for errands in again]

    def fail_all(self, error: Callable[[], Exception], *, cancel: bool = False) -> None:
        """Settle every task with an error: none will run any more. With ``cancel``, waiting tasks are cancelled."""
        running = [errand for member in self.members.values() for errand in member.running.values()]
        for member in self.members.values():
            member.running = {}
        for errand in (*running, *self._waiting):
            errand.recall()
            if cancel:
                errand.future.cancel()
            errand.fail(error())
        self._waiting.clear()

    def place(self) -> None:
        """Send waiting tasks to workers with free slots."""
        while self._client is not None and (placed := self._next()) is not None:
            errand, member = placed
            self._waiting.remove(errand)
            if errand.begin():
                errand.attempt += 1
                errand.since = time.monotonic()
                member.running[errand.call.number] = errand
                errand.sent = self._client.submit(
                    pickle.loads,
                    errand.call.payload(),
                    key=errand.key,
                    workers=[member.address],
                    allow_other_workers=False,
                    pure=False,
                )
                _keep(asyncio.create_task(self._follow(errand, member, errand.sent)))

    def _next(self) -> tuple[Errand, Member] | None:
        """Return the first task for which a worker has a free slot, and the worker with most free slots."""
        free = [member for member in self.members.values() if member.free > 0]
        if not free:
            return None
        for errand in self._waiting:
            if fits := self._fitting(errand, free):
                return errand, max(fits, key=lambda member: member.free)
        return None

    def _fitting(self, errand: Errand, free: list[Member]) -> list[Member]:
        """Select the ``free`` workers that a task may run on: those of another machine, if there are any."""
        if not errand.not_on or all(member.machine in errand.not_on for member in self.members.values()):
            return free
        return [member for member in free if member.machine not in errand.not_on]

    async def _follow(self, errand: Errand, member: Member, sent: DaskFuture) -> None:
        """Wait for the answer to a task, unless its worker is dropped meanwhile."""
        reply, gone = Reply(unhosted=True), False
        try:
            reply = pickle.loads(await sent)
        except (CancelledError, OSError, TimeoutError):  # the scheduler is lost, or has forgotten the task
            pass
        except Exception as error:
            gone = type(error).__name__ == "KilledWorker"  # the scheduler may be configured to end tasks so
            reply = Reply.of(error)
        finally:
            sent.release()
        if errand.sent is not sent:
            return  # it was sent elsewhere
        try:
            self._take(reply, errand, member, gone)
        except Exception as error:  # an error of our own must not leave the campaign waiting for ever
            member.running.pop(errand.call.number, None)
            errand.fail(error)
            self.place()

    def _take(self, reply: Reply, errand: Errand, member: Member, gone: bool) -> None:
        """Settle a task by its reply, or call ``doubt`` for a worker that could not run it."""
        raised = reply.raised()
        if gone or reply.unhosted or isinstance(raised, WorkerStartFailed):
            self._doubt(member, raised, gone)
            return
        del member.running[errand.call.number]
        errand.future.environment = dict(member.surroundings.environment)
        if raised is None:
            errand.settle(lambda future: future.set_result(reply.value))
        else:
            errand.settle(lambda future: future.set_exception(raised))
        self.place()

    def _again(self, errand: Errand, member: Member, blame: bool) -> bool:
        """Prepare a task whose worker is lost to run again; return False if it fails instead."""
        errand.recall()
        if blame:
            errand.lost.append(member.address)
        left = unblamed(errand.left)
        if len(errand.lost) < MOST_LOST:
            if left:
                errand.call = errand.call.resumed(left)
            return True
        errand.future.environment = dict(member.surroundings.environment)
        crash = WorkerCrashed(None, f"Dask workers were lost while they ran it: {', '.join(errand.lost)}")
        crash.left = left
        errand.fail(crash)
        return False


def _slug(label: str) -> str:
    """Turn a label into the beginning of a task's name: its first word, by which Dask groups tasks, and the rest."""
    first, _, rest = label.partition(" ")
    return "-".join(filter(None, (re.sub(r"\W+", "_", part).strip("_") for part in (first, rest)))) or "task"


_following: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """Hold a task of the event loop until it is done, which keeps only weak references."""
    _following.add(task)
    task.add_done_callback(_following.discard)
