"""Sends tasks to the Dask workers that a campaign has admitted, and again where one is lost.

Each task is pinned to a worker with a free slot: `tests/fuzz/cluster/test_dask_schedules.py` shows why Dask cannot
place them.
"""

from __future__ import annotations

import asyncio
import pickle
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fuzzcompile.diagnosis.worker.worker_loss import drop_blame
from fuzzcompile.fuzz.cluster.cluster_messages import ClusterCall, ClusterReply
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.run.pool.worker import WorkerCrashed, WorkerStartFailed

if TYPE_CHECKING:
    from distributed import Client
    from distributed.client import Future as DaskFuture

MOST_LOST = 3
"""A task that has run on so many lost Dask workers may be what ends them: it is not run again."""
# Nor is one that was sent so often: it may end Dask workers before they can say that it has begun.
_MOST_SENT = 4 * MOST_LOST


class ClusterFuture(Future[Any]):
    """The future of a task; ``environment`` is that of the worker that ran it, once it has ended."""

    environment: dict[str, object] | None = None


@dataclass(eq=False)
class ClusterTask:
    """A task that waits for a worker or runs on one."""

    call: ClusterCall
    label: str
    future: ClusterFuture
    on_left: Callable[[str, str], object] | None = None
    not_on: frozenset[str] = frozenset()  # machines, while there are others
    attempt: int = 0  # how often it was sent
    left: dict[str, str] = field(default_factory=dict)  # by the processes that ran it
    lost: list[str] = field(default_factory=list)  # the workers that were lost while they ran it
    since: float = 0.0
    began: bool = False  # or it waits until that Dask worker has a thread for it
    sent: DaskFuture | None = None

    @property
    def key(self) -> str:
        """The task's name in Dask: its first word, by which the dashboard groups tasks, and what tells it apart."""
        first, _, rest = self.label.partition(" ")
        words = [word for part in (first, rest) if (word := re.sub(r"\W+", "_", part).strip("_"))]
        return f"{'-'.join(words) or 'task'}-{self.call.campaign}-{self.call.number:x}.{self.attempt}"

    def begin(self) -> bool:
        """Mark the future as running; return False if it is done, or was cancelled, and notify its waiters then."""
        if self.future.done() and not self.future.cancelled():
            return False
        return self.future.running() or self.future.set_running_or_notify_cancel()

    def settle(self, error: Exception | None, value: object = None) -> None:
        """Set the future's exception or result, unless it was settled or cancelled already."""
        if self.begin():
            if error is None:
                self.future.set_result(value)
            else:
                self.future.set_exception(error)

    def release(self) -> None:
        """Release the Dask future: the answer of the worker that has the task is ignored."""
        if self.sent is not None:
            self.sent.release()
        self.sent = None


@dataclass(eq=False)
class ClusterMember:
    """A Dask worker that was admitted, and what it runs, by number."""

    address: str
    slots: int
    surroundings: WorkerDescription
    running: dict[int, ClusterTask] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self.slots - len(self.running)

    @property
    def machine(self) -> str:
        """The identifier of its machine."""
        return str(self.surroundings.environment.get("machine", "unknown"))

    def store_left(self, left: Mapping[int, Mapping[str, str]]) -> None:
        """Store and pass on intermediate results of the running tasks, by task number."""
        for number, task in self.running.items():
            for name, text in left.get(number, {}).items():
                task.left[name] = text
                if task.on_left is not None:
                    task.on_left(name, text)


class Dispatcher:
    """Sends tasks to members and settles their futures.

    ``doubt`` is called with a member that could not run a task, the error of its start if there is one, and True if the
    worker is gone. It drops the member.
    """

    def __init__(self, doubt: Callable[[ClusterMember, Exception | None, bool], None]) -> None:
        self._doubt = doubt
        self._waiting: deque[ClusterTask] = deque()
        self._following: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references
        self._client: Client | None = None
        self.members: dict[str, ClusterMember] = {}

    def connect(self, client: Client) -> None:
        """Send tasks by this client from now on."""
        self._client = client
        self.place()

    def disconnect(self) -> int:
        """Stop sending tasks, forget the members, and return the number of running tasks that will begin anew."""
        self._client = None
        return sum(self.drop(*self.members.values(), blame=False))

    def put(self, task: ClusterTask) -> None:
        """Send a task when a slot is free."""
        self._waiting.append(task)
        self.place()

    def add(self, member: ClusterMember) -> None:
        """Send tasks to this worker too."""
        self.members[member.address] = member
        self.place()

    def mark_begun(self, number: int, address: str) -> None:
        """Note that a task has begun on a worker, as that says."""
        if (member := self.members.get(address)) is not None and number in member.running:
            member.running[number].began = True

    def drop(self, *members: ClusterMember, blame: bool) -> list[int]:
        """Drop workers, and return how many tasks of each begin anew. ``blame``: a task may have ended its worker.

        Workers that are lost together are dropped together, so that none of them gets a task of another one.
        """
        again: list[list[ClusterTask]] = []
        for member in members:
            if self.members.get(member.address) is member:
                del self.members[member.address]
            running, member.running = list(member.running.values()), {}
            again.append([task for task in running if self._prepare_retry(task, member, blame)])
        self._waiting.extendleft(reversed([task for tasks in again for task in tasks]))
        self.place()
        return [len(tasks) for tasks in again]

    def fail_all(self, error: Callable[[], Exception], *, cancel: bool = False) -> None:
        """Settle every task with an error: none will run any more. With ``cancel``, waiting tasks are cancelled."""
        running = [task for member in self.members.values() for task in member.running.values()]
        for member in self.members.values():
            member.running = {}
        for task in (*running, *self._waiting):
            task.release()
            if cancel:
                task.future.cancel()
            task.settle(error())
        self._waiting.clear()

    def place(self) -> None:
        """Send waiting tasks to workers with free slots."""
        while self._client is not None and (placed := self._choose_next()) is not None:
            task, member = placed
            self._waiting.remove(task)
            if task.begin():
                task.attempt, task.began, task.since = task.attempt + 1, False, time.monotonic()
                member.running[task.call.number] = task
                payload = pickle.dumps(task.call, pickle.HIGHEST_PROTOCOL)
                where = {"workers": [member.address], "allow_other_workers": False}
                task.sent = self._client.submit(pickle.loads, payload, key=task.key, **where, pure=False)
                following = asyncio.create_task(self._follow(task, member, task.sent))
                self._following.add(following)
                following.add_done_callback(self._following.discard)

    def _choose_next(self) -> tuple[ClusterTask, ClusterMember] | None:
        """Return the first task for which a worker has a free slot, and the worker with most free slots."""
        machines = {member.machine for member in self.members.values()}
        free = [member for member in self.members.values() if member.free > 0]
        for task in self._waiting if free else ():
            elsewhere = machines - task.not_on or machines  # on any, if all have tried it
            if fits := [member for member in free if member.machine in elsewhere]:
                return task, max(fits, key=lambda member: member.free)
        return None

    async def _follow(self, task: ClusterTask, member: ClusterMember, sent: DaskFuture) -> None:
        """Wait for the answer to a task, unless its worker is dropped meanwhile."""
        reply, gone = ClusterReply(unhosted=True), False
        try:
            reply = pickle.loads(await sent)
        except (CancelledError, OSError, TimeoutError):  # the scheduler is lost, or has forgotten the task
            pass
        except Exception as error:
            gone = type(error).__name__ == "KilledWorker"  # the scheduler may be configured to end tasks so
            reply = ClusterReply.of(error)
        finally:
            sent.release()
        if task.sent is not sent:
            return  # it was sent elsewhere
        try:
            raised = reply.load_error()
            if gone or reply.unhosted or isinstance(raised, WorkerStartFailed):
                self._doubt(member, raised, gone)
                return
            task.future.environment = dict(member.surroundings.environment)
            del member.running[task.call.number]
        except Exception as error:  # an error of our own must not leave the campaign waiting for ever
            member.running.pop(task.call.number, None)
            raised = error
        task.settle(raised, reply.value)
        self.place()

    def _prepare_retry(self, task: ClusterTask, member: ClusterMember, blame: bool) -> bool:
        """Prepare a task whose worker is lost to run again; return False if it fails instead."""
        task.release()
        if blame and task.began:
            task.lost.append(member.address)
        left = drop_blame(task.left)
        if len(task.lost) < MOST_LOST and task.attempt < _MOST_SENT:
            task.call = task.call.resume(left) if left else task.call
            return True
        task.future.environment = dict(member.surroundings.environment)
        crash = WorkerCrashed(None, f"Dask workers were lost while they ran it: {', '.join(task.lost)}")
        crash.left = left
        task.settle(crash)
        return False
