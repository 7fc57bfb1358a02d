"""The Dask workers of a campaign: admits or refuses them, sends them its tasks, and sends those of lost ones again.

Each task is pinned to a worker with a free slot: `tests/fuzz/cluster/test_dask_schedules.py` shows why Dask cannot
place them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pickle
import re
import signal
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from typing import Any

import distributed

from fuzzcompile.diagnosis.worker.worker_loss import drop_blame
from fuzzcompile.fuzz.cluster import dask_host
from fuzzcompile.fuzz.cluster.cluster_messages import (
    ClusterCall,
    HostCharter,
    Unhosted,
    WorkerOffer,
    WorkerRequirements,
    explain_difference,
    explain_failed_offer,
)
from fuzzcompile.fuzz.cluster.cluster_state import (
    Change,
    ClusterAddress,
    ClusterState,
    SchedulerBack,
    SchedulerLost,
    WorkerJoined,
    WorkerLost,
    WorkerRefused,
)
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError, format_message
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.run.pool.worker import WorkerCrashed, WorkerStartFailed

MOST_LOST = 3
"""A task that has run on so many lost Dask workers may be what ends them: it is not run again."""
# Nor is one that was sent so often: it may end Dask workers before they can say that it has begun.
_MOST_SENT = 4 * MOST_LOST

ANSWERS_WITHIN = 8.0
"""Seconds that a scheduler has to answer."""
_ENDS_WITHIN = 10.0  # seconds that a client or the workers of ``local:N`` have to end
_TICK = 1.0
_SETTLING = 3.0  # seconds from the first offer in which others count for which kind of worker the campaign takes
_ASKING = 30.0  # seconds that a Dask worker has to send its offer
_OPENING = 400.0  # seconds that it has to start its processes, which import torch
_PULSE = 15.0  # seconds after which a worker is asked again how its tasks are
_ANSWER_LIMIT = 60.0  # seconds without an answer after which it counts as lost, until it answers again
_PATIENCE = 60.0  # seconds that a lost scheduler has to come back
_NO_WORKER_LIMIT = 600.0  # seconds that a campaign waits for any worker once it had some


@dataclass
class Connection:
    """A client of a scheduler, and with ``local:N`` the scheduler and the Dask workers, which end with it."""

    client: distributed.Client
    scheduler: str
    ending: AsyncExitStack

    @classmethod
    async def open(cls, address: ClusterAddress, within: float) -> Connection:
        """Connect, for ``local:N`` to a scheduler and workers that are started for it.

        Dask's own configuration decides on certificates, time limits and the like.

        Raises:
            EnvironmentUnfit: no scheduler answers within so many seconds, or the connection is refused.
        """
        # Changes are reported as events, not by Dask's logs. Some of its loggers have levels of their own.
        for name in ("distributed", *logging.root.manager.loggerDict):
            if name.partition(".")[0] == "distributed":
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        try:
            async with AsyncExitStack() as ending:  # what has begun ends if the rest fails or is cancelled
                scheduler = await _start(address.local, ending) if address.local is not None else address.scheduler()
                options = {"asynchronous": True, "set_as_default": False, "timeout": within}
                client = distributed.Client(scheduler, name="fuzzcompile", **options)
                ending.push_async_callback(_end, functools.partial(client._close, fast=True))
                with warnings.catch_warnings(action="ignore"):  # versions are compared by what matters
                    await asyncio.wait_for(client, within)
                return cls(client, scheduler, ending.pop_all())
        except OSError as error:
            why = f" ({said})" if (said := format_message(error, 200)) else ""
            raise EnvironmentUnfit(
                f"No Dask scheduler answers at {address}{why}: start one (`dask scheduler`) and workers (`dask "
                "worker ADDRESS`), or try --cluster local:2, which starts both on this machine."
            ) from error
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            raise EnvironmentUnfit(
                f"Dask cannot connect to {address}: {format_message(error)}. For tls:// its configuration names the "
                "certificates (distributed.comm.tls)."
            ) from error


async def _start(workers: int, ending: AsyncExitStack) -> str:
    # Ctrl-C, which the terminal sends to them too, is left to the main thread: they inherit what this thread blocks.
    resource_tracker.ensure_running()  # it unblocks Ctrl-C when it starts, and goes first
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    cluster: Any = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, asynchronous=True, **local)
    starting = asyncio.ensure_future(cluster)

    async def close() -> None:
        await asyncio.wait([starting])  # if its start is cancelled, Dask leaves the workers running
        await cluster.close()

    ending.push_async_callback(_end, close)
    await asyncio.shield(starting)
    return str(cluster.scheduler_address)


async def _end(close: Callable[[], Awaitable[object]]) -> None:
    with contextlib.suppress(Exception):  # what is gone already need not be closed
        await asyncio.wait_for(close(), _ENDS_WITHIN)


@dataclass(eq=False, repr=False)
class ClusterTask(Future[Any]):
    """A task that waits for a worker or runs on one, and its future."""

    call: ClusterCall
    label: str
    on_left: Callable[[str, str], object] | None = None
    not_on: frozenset[str] = frozenset()  # machines, while there are others
    environment: Mapping[str, object] | None = None  # of the worker that ran it, once it has ended
    attempt: int = 0  # how often it was sent
    left: dict[str, str] = field(default_factory=dict)  # by the processes that ran it
    lost: list[str] = field(default_factory=list)  # the workers that were lost while they ran it
    since: float = 0.0
    began: bool = False  # or it waits until that Dask worker has a thread for it
    sent: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def key(self) -> str:
        """The task's name in Dask: its first word, by which the dashboard groups tasks, and what tells it apart."""
        first, _, rest = re.sub(r"\W+", "_", self.label).strip("_").partition("_")
        return f"{first or 'task'}-{rest}-{self.call.campaign}-{self.call.number:x}.{self.attempt}"

    def begin(self) -> bool:
        """Mark the future as running; return False if it was cancelled, of which its waiters are told."""
        return self.running() or self.set_running_or_notify_cancel()


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


class Membership:
    """Keeps the members of a campaign, each Dask worker in an asyncio task of its own (`_attend`), and runs its tasks.

    ``first`` is how the first member describes its surroundings, or the error after which no task will run any more,
    which is ``broken`` from then on. ``changes`` have not been reported yet; ``refused`` says why, by address. The
    ``charter`` of each worker has its slots and share filled in; with ``any_device``, cases may run on any.
    """

    def __init__(
        self, address: ClusterAddress, charter: HostCharter, wanted: WorkerRequirements, *, any_device: bool
    ) -> None:
        self.address, self.wanted = address, wanted
        self.first: Future[WorkerDescription] = Future()
        self.broken: FuzzcompileError | None = None
        self.changes: deque[Change] = deque()
        self.refused: dict[str, str] = {}
        self.connection: Connection | None = None
        self.members: dict[str, ClusterMember] = {}
        self.opening: set[str] = set()  # the workers that are being asked for the first time; later, it may never end
        self._charter, self._any_device = charter, any_device
        self._waiting: deque[ClusterTask] = deque()
        self._offers: dict[str, WorkerOffer] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._attending: dict[str, asyncio.Task[None]] = {}
        self._asked: float | None = None  # when the first worker made its offer
        self._narrowed = False
        self._alone = time.monotonic()

    @property
    def state(self) -> ClusterState:
        """The cluster as it is now."""
        members, connection, dashboard = list(self.members.values()), self.connection, ""  # other threads ask
        if connection is not None:
            with contextlib.suppress(Exception):  # the scheduler may have none
                dashboard = str(connection.client.dashboard_link or "")
        return ClusterState(
            scheduler=str(self.address) if connection is None else connection.scheduler,
            dashboard=dashboard,
            workers=len(members),
            machines=len({member.machine for member in members}),
            slots=sum(member.slots for member in members),
            busy=sum(len(member.running) for member in members),
            connected=connection is not None,
        )

    async def keep(self) -> None:
        """Keep the members until `close` or until this fails."""
        self._keeping = asyncio.current_task()
        try:
            await self._connect(ANSWERS_WITHIN)
            while True:
                try:
                    await self._tick()
                except OSError:
                    await self._reconnect()
                await asyncio.sleep(_TICK)
        except FuzzcompileError as error:
            self._fail(error)
        except Exception as error:  # an error of our own must not leave the campaign waiting for ever
            self._fail(EnvironmentUnfit(f"The cluster cannot be used: {type(error).__name__}: {error}."))
            raise

    async def close(self) -> None:
        """Keep the members no longer, end the campaign's processes on all workers, and disconnect."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping], timeout=2 * _ENDS_WITHIN)  # what it was starting ends with it
        self._forget(*self._attending)
        if self.connection is not None:
            with contextlib.suppress(Exception):  # a worker that gets no message closes by its own time limit
                await self._ask(None, dask_host.close_host, self._charter.campaign, within=ANSWERS_WITHIN)
            await self.connection.ending.aclose()

    # -- tasks ----------------------------------------------------------------------------------------------------

    def put(self, task: ClusterTask) -> None:
        """Send a task when a slot is free."""
        if self.broken is None:
            self._waiting.append(task)
            self._place()
        elif task.begin():
            task.set_exception(self.make_failure())

    def fail_all(self, error: Callable[[], Exception], *, cancel: bool = False) -> None:
        """Settle every task with an error: none will run any more. With ``cancel``, waiting tasks are cancelled."""
        for task in self._waiting if cancel else ():
            task.cancel()
        running = self._take_running(*self.members.values())
        for task in (*running, *self._waiting):
            if task.begin():
                task.set_exception(error())
        self._waiting.clear()

    def make_failure(self) -> WorkerStartFailed:
        """Return the error of a task that can run no more."""
        failure = WorkerStartFailed("the cluster is lost", str(self.broken), final=True)
        failure.__cause__ = self.broken
        return failure

    def _fail(self, error: FuzzcompileError) -> None:
        self.broken = error
        self.fail_all(self.make_failure)
        if not self.first.done():
            self.first.set_exception(error)

    def _place(self) -> None:
        while self.connection is not None and (placed := self._choose_next()) is not None:
            task, member = placed
            self._waiting.remove(task)
            if task.begin():
                task.attempt, task.began, task.since = task.attempt + 1, False, time.monotonic()
                member.running[task.call.number] = task
                task.sent = asyncio.create_task(self._run(task, member, self.connection))

    def _choose_next(self) -> tuple[ClusterTask, ClusterMember] | None:
        machines = {member.machine for member in self.members.values()}
        free = [member for member in self.members.values() if member.free > 0]
        for task in self._waiting if free else ():
            elsewhere = machines - task.not_on or machines  # on any, if all have tried it
            if fits := [member for member in free if member.machine in elsewhere]:
                return task, max(fits, key=lambda member: member.free)
        return None

    async def _run(self, task: ClusterTask, member: ClusterMember, connection: Connection) -> None:
        sent, value, cause = None, None, None
        error: Exception | None = None
        try:
            pinned = {"workers": [member.address], "allow_other_workers": False}
            sent = connection.client.submit(pickle.loads, pickle.dumps(task.call), key=task.key, **pinned, pure=False)
            value, error, cause = pickle.loads(await sent)
        except (CancelledError, OSError):  # the scheduler is lost, or has forgotten the task
            error = Unhosted()
        except Exception as raised:  # of pickling, of unpickling, or the scheduler is configured to end such tasks
            error = raised
        finally:
            if sent is not None:
                sent.release()
        if error is not None:
            error.__cause__ = cause or error.__cause__
        if type(error).__name__ == "KilledWorker":
            self.lose("it is gone", member)
        elif isinstance(error, Unhosted | WorkerStartFailed):
            lacks = error.__cause__ if isinstance(error, Unhosted) else error
            why = "it serves the campaign no longer" if lacks is None else format_message(lacks).rstrip(".")
            self.lose(why, member, blame=False)
            if lacks is not None:
                self._refuse(member.address, why)
        else:
            del member.running[task.call.number]
            task.environment = member.surroundings.environment
            if error is None:
                task.set_result(value)
            else:
                task.set_exception(error)
            self._place()

    def _take_running(self, *members: ClusterMember) -> list[ClusterTask]:
        """Take their tasks from workers, whose answers are ignored from now on."""
        taken = [task for member in members for task in member.running.values()]
        for member in members:
            member.running = {}
        for task in taken:
            if task.sent is not None and task.sent is not asyncio.current_task():
                task.sent.cancel()
        return taken

    def lose(self, why: str, *members: ClusterMember, blame: bool = True, report: bool = True) -> int:
        """Drop members, and return how many of their tasks begin anew. ``blame``: a task may have ended its worker.

        Workers that are lost together are dropped together, so that none of them gets a task of another one.
        """
        again: list[ClusterTask] = []
        for member in members:
            if self.members.get(member.address) is not member:
                continue
            del self.members[member.address]
            self._forget(member.address)
            tasks = [task for task in self._take_running(member) if self._prepare_retry(task, member, blame)]
            again += tasks
            if report:
                self.changes.append(WorkerLost(member.address, member.machine, len(tasks), why))
        self._waiting.extendleft(reversed(again))
        self._place()
        return len(again)

    def _prepare_retry(self, task: ClusterTask, member: ClusterMember, blame: bool) -> bool:
        """Prepare a task whose worker is lost to run again; return False if it fails instead."""
        if blame and task.began:
            task.lost.append(member.address)
        left = drop_blame(task.left)
        if len(task.lost) < MOST_LOST and task.attempt < _MOST_SENT:
            task.call = task.call.resume(left) if left else task.call
            return True
        crash = WorkerCrashed(None, f"Dask workers were lost while they ran it: {', '.join(task.lost)}")
        crash.left = left
        task.environment = member.surroundings.environment
        task.set_exception(crash)
        return False

    # -- the scheduler --------------------------------------------------------------------------------------------

    async def _connect(self, within: float) -> Connection:
        self.connection = connection = await Connection.open(self.address, within)
        connection.client.subscribe_topic(self._charter.campaign, self.mark_begun)
        return connection

    def mark_begun(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Note that a task has begun on a worker, as that says."""
        member = self.members.get(event[1]["worker"])
        if member is not None and (task := member.running.get(event[1]["begun"])) is not None:
            task.began = True

    async def _reconnect(self) -> None:
        """Wait for the scheduler to come back; its workers are all new then."""
        assert self.connection is not None
        lost, self.connection = self.connection, None
        self._forget(*self._attending)
        tasks = self.lose("", *self.members.values(), blame=False, report=False)
        self.changes.append(SchedulerLost(lost.scheduler, _PATIENCE))
        deadline = time.monotonic() + _PATIENCE
        await lost.ending.aclose()
        back = None
        while back is None:
            try:
                back = await self._connect(min(ANSWERS_WITHIN, max(1.0, deadline - time.monotonic())))
            except FuzzcompileError as error:
                if time.monotonic() > deadline:
                    raise EnvironmentUnfit(
                        f"The Dask scheduler at {lost.scheduler} was lost and did not come back within "
                        f"{_PATIENCE:.0f} s; once it runs, the same command resumes the campaign."
                    ) from error
                await asyncio.sleep(_TICK)
        self._alone = time.monotonic()
        self.changes.append(SchedulerBack(back.scheduler, tasks))

    async def _tick(self) -> None:
        assert self.connection is not None
        if self.connection.client.status != "running":
            raise OSError("the client has lost the scheduler")
        async with asyncio.timeout(ANSWERS_WITHIN):  # `wait_for` may swallow a cancellation (Python 3.11)
            present = await self.connection.client.nthreads()
        self.lose("it is gone", *(each for each in self.members.values() if each.address not in present))
        self._forget(*(self._attending.keys() - present.keys()))
        for address in present.keys() - self._attending.keys():
            self._attending[address] = asyncio.create_task(self._attend(address))
        if self.members or self.opening or not self.first.done():
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > _NO_WORKER_LIMIT:
            raise EnvironmentUnfit(
                f"The cluster at {self.address} has had no fitting Dask worker for {_NO_WORKER_LIMIT / 60:.0f} "
                "minutes; once it has some, the same command resumes the campaign."
            )

    # -- workers --------------------------------------------------------------------------------------------------

    async def _attend(self, address: str) -> None:
        """Admit a Dask worker or refuse it, and ask it how its tasks are until it is lost."""
        if address in self.refused:  # it was admitted, and could not run a task
            return
        self.opening.add(address)
        try:
            while address not in self.members:
                try:
                    await self._admit(address)
                except OSError:  # it does not answer yet
                    await asyncio.sleep(_TICK)
                finally:
                    self.opening.discard(address)
            member = self.members[address]
            while self.members.get(address) is member:
                await asyncio.sleep(_PULSE)
                with contextlib.suppress(OSError):  # it is gone, and the scheduler will say so
                    await self._check_health(member)
        except Exception as error:  # the campaign goes on without it, and says why
            fit = isinstance(error, FuzzcompileError)
            self._refuse(address, ("" if fit else f"{type(error).__name__}: ") + format_message(error).rstrip("."))

    async def _admit(self, address: str) -> None:
        """Admit a worker; raise EnvironmentUnfit if it does not fit, and OSError if it does not answer."""
        try:
            offer = await self._ask(address, dask_host.offer, within=_ASKING)
        except OSError:
            raise
        except Exception as error:
            raise EnvironmentUnfit(explain_failed_offer(error)) from error
        self._offers[address] = offer
        await self._narrow()
        if (why := self.wanted.explain_refusal(offer)) is not None:
            raise EnvironmentUnfit(why)
        here = [each.slots for known, each in self._offers.items() if _parse_host(known) == _parse_host(address)]
        charter = replace(self._charter, slots=offer.slots, share=offer.slots / sum(here))
        try:
            description = await self._ask(address, dask_host.open_host, charter, within=_OPENING)
        except UsageError as error:
            if not self.first.done():
                self._fail(error)  # the user's own plant or pass fails, and would everywhere
            raise
        self.welcome(ClusterMember(address, offer.slots, description))

    def welcome(self, member: ClusterMember) -> None:
        """Send tasks to this worker too; raise EnvironmentUnfit if its results do not compare with the first one's."""
        here = member.surroundings
        if self.first.done() and (why := explain_difference(self.first.result(), here)) is not None:
            raise EnvironmentUnfit(why)
        self.members[member.address] = member
        torch = str(here.environment["torch"])
        self.changes.append(WorkerJoined(member.address, member.machine, member.slots, torch, here.device))
        if not self.first.done():
            self.first.set_result(here)
        self._place()

    async def _narrow(self) -> None:
        self._asked = self._asked or time.monotonic()
        while self.opening - self._offers.keys() and time.monotonic() - self._asked < _SETTLING and not self._narrowed:
            await asyncio.sleep(_TICK)
        if not self._narrowed:
            self.wanted = self.wanted.narrow(self._offers.values(), any_device=self._any_device)
            self._narrowed = any(self.wanted.explain_refusal(offer) is None for offer in self._offers.values())

    def _refuse(self, address: str, why: str) -> None:
        if address not in self.refused:
            self.refused[address] = why
            self.changes.append(WorkerRefused(address, why))

    async def _check_health(self, member: ClusterMember) -> None:
        """Take what a worker's tasks have left; drop the worker if it does not answer or has closed its host."""
        try:
            left = await self._ask(member.address, dask_host.pulse, self._charter.campaign, within=_ANSWER_LIMIT)
        except TimeoutError:
            self.lose(f"it has not answered for {_ANSWER_LIMIT:.0f} s", member)
            return
        if left is None:
            self.lose("it serves the campaign no longer", member, blame=False)
        else:
            member.store_left(left)

    def _forget(self, *addresses: str) -> None:
        """Forget what is known of workers, so that they are attended anew if they are still there."""
        for address in addresses:
            self._offers.pop(address, None)
            self.refused.pop(address, None)
            if (task := self._attending.pop(address, None)) is not None and task is not asyncio.current_task():
                task.cancel()

    async def _ask(self, address: str | None, function: Callable[..., object], *args: object, within: float) -> Any:
        """Run a function on one Dask worker (None: all), and return its result; raise what it raises there."""
        assert self.connection is not None
        workers = None if address is None else [address]
        async with asyncio.timeout(within):
            answers = await self.connection.client.run(function, *args, workers=workers, on_error="return")
        answer = answers.get(address, OSError("it is gone")) if address is not None else None
        answer = pickle.loads(answer) if isinstance(answer, bytes) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def _parse_host(address: str) -> str:
    """Return the host in a Dask worker's address: workers of one host share its processors."""
    return address.rpartition("://")[2].rpartition(":")[0]
