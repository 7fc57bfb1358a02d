"""Assigns tasks to Dask workers that fit a campaign."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fuzzcompile.diagnosis.worker.worker_loss import drop_blame
from fuzzcompile.fuzz.cluster.cluster_messages import ClusterCall, ClusterReply, WorkerOffer, compute_code_digest
from fuzzcompile.model.errors import format_message
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.model.versions import __version__
from fuzzcompile.run.pool.worker import WorkerCrashed, WorkerStartFailed

if TYPE_CHECKING:
    from distributed import Client
    from distributed.client import Future as DaskFuture


# The requirements of a campaign on Dask workers, and the reason, in one sentence, why a worker does not fit.


@dataclass(frozen=True)
class WorkerRequirements:
    """The requirements of a campaign on its workers.

    Attributes:
        torch: the version, with or without a build (``2.15.0``, ``2.15.0+cpu``); None for any.
        gpu: True if there must be a GPU, False if there must be none; None for either.
    """

    torch: str | None = None
    gpu: bool | None = None

    def explain_refusal(self, offer: WorkerOffer) -> str | None:
        """Return the reason why a Dask worker does not fit; None if it fits."""
        if (offer.version, offer.code) != (__version__, compute_code_digest()):
            return (
                f"it has fuzzcompile {offer.version} ({offer.code}), and the campaign runs fuzzcompile "
                f"{__version__} ({compute_code_digest()}); install the same there"
            )
        if not offer.torch:
            return "no torch is installed there"
        if self.torch is not None and self.torch not in (offer.torch, offer.torch.partition("+")[0]):
            return f"it has torch {offer.torch}, and the campaign is for torch {self.torch}"
        if self.gpu is not None and self.gpu != offer.gpu:
            return (
                "it has no GPU, and the campaign runs on GPUs"
                if self.gpu
                else "it has a GPU, and the campaign runs on CPUs; --device cpu takes such workers too"
            )
        if offer.slots < 1:
            return "its Dask resource fuzzcompile=0 keeps campaigns off it"
        return None

    def narrow(self, offers: Iterable[WorkerOffer], *, any_device: bool) -> WorkerRequirements:
        """Narrow to the kind of worker with most slots: a campaign runs under one torch, on one kind of device.

        Args:
            offers: the present offers; if none fits, nothing is narrowed.
            any_device: True if cases may run on any device.
        """
        slots = Counter[tuple[str, bool]]()
        for offer in offers:
            if self.explain_refusal(offer) is None:
                slots[offer.torch, offer.gpu] += offer.slots
        if not slots:
            return self
        torch, gpu = max(slots, key=lambda kind: (slots[kind], kind))
        return replace(self, torch=torch, gpu=self.gpu if any_device else gpu)


def explain_difference(first: WorkerDescription, here: WorkerDescription) -> str | None:
    """Return the reason why results from ``here`` do not compare with those of the ``first`` worker; None if they do.

    Both workers fit the requirements, and have described their surroundings when they started.
    """
    if first.environment["torch"] != here.environment["torch"]:
        return f"it runs torch {here.environment['torch']}, and the campaign torch {first.environment['torch']}"
    if first.device != here.device:
        return f"its cases would run on {here.device}, and the campaign's run on {first.device}"
    if first.custom != here.custom:
        return "it has another version of the passes or the backend of your own"
    missing = sorted(set(here.lacks) - set(first.lacks))
    return f"its torch lacks what the campaign draws: {', '.join(missing[:5])}" if missing else None


def explain_failed_offer(error: Exception) -> str:
    """Return the reason why a Dask worker answered with an error when asked for its offer."""
    text = format_message(error, 200)  # Dask may wrap the error in another that says it
    if match := re.search(r"No module named \W*(fuzzcompile[\w.]*)", text):
        return "no fuzzcompile is installed there" if match[1] == "fuzzcompile" else "its fuzzcompile is older"
    return f"it cannot be asked for its fuzzcompile ({text})"


def parse_host(address: str) -> str:
    """Return the host in a Dask worker's address: workers of one host share its processors."""
    return urlsplit(address).hostname or address


MOST_LOST = 3
"""A task that has run on so many lost Dask workers may be what ends them: it is not run again."""
# Nor is one that was sent so often: it may end Dask workers before they can say that it has begun.
_MOST_SENT = 4 * MOST_LOST


class ClusterFuture(Future[Any]):
    """The future of a task; ``environment`` is that of the worker that ran it, once it has ended."""

    environment: dict[str, object] | None = None


@dataclass(eq=False)
class ClusterTask:
    """A task that waits for a worker or runs on one.

    ``attempt`` counts how often it was sent, and ``began`` says whether it runs there, or waits until that Dask worker
    has a thread for it. ``lost`` are the workers that it was lost with while it ran, and ``left`` is what their
    processes left of it. It does not run on the machines ``not_on`` while there are others.
    """

    call: ClusterCall
    label: str
    future: ClusterFuture
    on_left: Callable[[str, str], object] | None = None
    not_on: frozenset[str] = frozenset()
    attempt: int = 0
    left: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    since: float = 0.0
    began: bool = False
    sent: DaskFuture | None = None

    @property
    def key(self) -> str:
        """The name of the task in Dask, beginning with its label, by which the dashboard groups tasks."""
        return f"{_format_key(self.label)}-{self.call.campaign}-{self.call.number:x}.{self.attempt}"

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

    def release(self) -> None:
        """Release the Dask future: the answer of the worker that has the task is ignored."""
        if self.sent is not None:
            self.sent.release()
        self.sent = None


@dataclass(eq=False)
class ClusterMember:
    """A Dask worker that was admitted; ``asked`` is the ``time.monotonic()`` of the last query of its tasks."""

    address: str
    slots: int
    surroundings: WorkerDescription
    running: dict[int, ClusterTask] = field(default_factory=dict)
    asked: float = field(default_factory=time.monotonic)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self.slots - len(self.running)

    def store_left(self, left: Mapping[int, Mapping[str, str]]) -> None:
        """Store and pass on intermediate results of the running tasks, by task number."""
        for number, texts in left.items():
            task = self.running.get(number)
            if task is not None:
                task.left.update(texts)
                if task.on_left is not None:
                    for name, text in texts.items():
                        task.on_left(name, text)

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

    def __init__(self, doubt: Callable[[ClusterMember, Exception | None, bool], None]) -> None:
        self._doubt = doubt
        self._waiting: deque[ClusterTask] = deque()
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

    def mark_begun(self, number: int, address: str) -> None:
        """Note that a task has begun on a worker, as that says."""
        member = self.members.get(address)
        task = None if member is None else member.running.get(number)
        if task is not None:
            task.began = True

    def add(self, member: ClusterMember) -> None:
        """Send tasks to this worker too."""
        self.members[member.address] = member
        self.place()

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
            task.fail(error())
        self._waiting.clear()

    def place(self) -> None:
        """Send waiting tasks to workers with free slots."""
        while self._client is not None and (placed := self._choose_next()) is not None:
            task, member = placed
            self._waiting.remove(task)
            if task.begin():
                task.attempt += 1
                task.began = False
                task.since = time.monotonic()
                member.running[task.call.number] = task
                task.sent = self._client.submit(
                    pickle.loads,
                    task.call.make_payload(),
                    key=task.key,
                    workers=[member.address],
                    allow_other_workers=False,
                    pure=False,
                )
                _keep_reference(asyncio.create_task(self._follow(task, member, task.sent)))

    def _choose_next(self) -> tuple[ClusterTask, ClusterMember] | None:
        """Return the first task for which a worker has a free slot, and the worker with most free slots."""
        free = [member for member in self.members.values() if member.free > 0]
        if not free:
            return None
        for task in self._waiting:
            if fits := self._select_fitting(task, free):
                return task, max(fits, key=lambda member: member.free)
        return None

    def _select_fitting(self, task: ClusterTask, free: list[ClusterMember]) -> list[ClusterMember]:
        """Select the ``free`` workers that a task may run on: those of another machine, if there are any."""
        if not task.not_on or all(member.machine in task.not_on for member in self.members.values()):
            return free
        return [member for member in free if member.machine not in task.not_on]

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
            self._take(reply, task, member, gone)
        except Exception as error:  # an error of our own must not leave the campaign waiting for ever
            member.running.pop(task.call.number, None)
            task.fail(error)
            self.place()

    def _take(self, reply: ClusterReply, task: ClusterTask, member: ClusterMember, gone: bool) -> None:
        """Settle a task by its reply, or call ``doubt`` for a worker that could not run it."""
        raised = reply.load_error()
        if gone or reply.unhosted or isinstance(raised, WorkerStartFailed):
            self._doubt(member, raised, gone)
            return
        del member.running[task.call.number]
        task.future.environment = dict(member.surroundings.environment)
        if raised is None:
            task.settle(lambda future: future.set_result(reply.value))
        else:
            task.settle(lambda future: future.set_exception(raised))
        self.place()

    def _prepare_retry(self, task: ClusterTask, member: ClusterMember, blame: bool) -> bool:
        """Prepare a task whose worker is lost to run again; return False if it fails instead."""
        task.release()
        if blame and task.began:
            task.lost.append(member.address)
        left = drop_blame(task.left)
        if len(task.lost) < MOST_LOST and task.attempt < _MOST_SENT:
            if left:
                task.call = task.call.resume(left)
            return True
        task.future.environment = dict(member.surroundings.environment)
        crash = WorkerCrashed(None, f"Dask workers were lost while they ran it: {', '.join(task.lost)}")
        crash.left = left
        task.fail(crash)
        return False


def _format_key(label: str) -> str:
    """Turn a label into the beginning of a task's name: its first word, by which Dask groups tasks, and the rest."""
    first, _, rest = label.partition(" ")
    return "-".join(filter(None, (re.sub(r"\W+", "_", part).strip("_") for part in (first, rest)))) or "task"


_following: set[asyncio.Task[None]] = set()


def _keep_reference(task: asyncio.Task[None]) -> None:
    """Hold a task of the event loop until it is done, which keeps only weak references."""
    _following.add(task)
    task.add_done_callback(_following.discard)
