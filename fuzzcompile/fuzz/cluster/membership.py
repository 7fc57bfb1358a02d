"""Membership of Dask workers in a campaign: connects, queries, admits or refuses, and detects losses."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pickle
import signal
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from typing import Any

import distributed

from fuzzcompile.fuzz.cluster import dask_host
from fuzzcompile.fuzz.cluster.cluster_messages import (
    HostCharter,
    WorkerOffer,
    WorkerRequirements,
    explain_difference,
    explain_failed_offer,
    name_topic,
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
from fuzzcompile.fuzz.cluster.dispatcher import ClusterMember, Dispatcher
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError, format_message
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.run.pool.worker import WorkerStartFailed

ANSWERS_WITHIN = 8.0
"""Seconds that a scheduler has to answer."""
ENDS_WITHIN = 10.0
"""Seconds that a client or the workers of ``local:N`` have to end."""


@dataclass
class Connection:
    """A client of a scheduler, and with ``local:N`` the scheduler and the Dask workers, which end with it."""

    client: distributed.Client
    scheduler: str
    ending: AsyncExitStack

    @classmethod
    async def open(cls, address: ClusterAddress, within: float = ANSWERS_WITHIN) -> Connection:
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
        except (OSError, TimeoutError) as error:
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

    @property
    def dashboard(self) -> str:
        """The URL of Dask's dashboard; empty if the scheduler has none."""
        with contextlib.suppress(Exception):
            return str(self.client.dashboard_link or "")
        return ""


async def _start(workers: int, ending: AsyncExitStack) -> str:
    """Start a scheduler and Dask workers on this machine; return the scheduler's address."""
    _leave_interrupts_to_the_main_thread()
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
        await asyncio.wait_for(close(), ENDS_WITHIN)


def _leave_interrupts_to_the_main_thread() -> None:
    """Keep Ctrl-C from the processes that this thread starts, which the terminal sends it to as well.

    They inherit what the thread blocks. The tracker of multiprocessing unblocks it when it starts, and goes first.
    """
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


_TICK = 1.0
_SETTLING = 3.0  # seconds from the first offer in which others count for which kind of worker the campaign takes
_ASKING = 30.0  # seconds that a Dask worker has to send its offer
_OPENING = 400.0  # seconds that it has to start its processes, which import torch
_PULSE = 15.0  # seconds after which a worker is asked again how its tasks are
_ANSWER_LIMIT = 60.0  # seconds without an answer after which it counts as lost, until it answers again
_PATIENCE = 60.0  # seconds that a lost scheduler has to come back
_NO_WORKER_LIMIT = 600.0  # seconds that a campaign waits for any worker once it had some


class Membership:
    """Keeps the members of a campaign, each Dask worker in a task of its own (`_attend`).

    ``first`` is how the first member describes its surroundings, or the error after which no task will run any more,
    which is ``broken`` from then on. ``changes`` have not been reported yet; ``refused`` says why, by address. The
    ``charter`` of each worker has its slots and share filled in; with ``any_device``, cases may run on any.
    """

    def __init__(
        self, address: ClusterAddress, charter: HostCharter, wanted: WorkerRequirements, *, any_device: bool
    ) -> None:
        self.address, self.wanted = address, wanted
        self.dispatcher = Dispatcher(self._doubt)
        self.first: Future[WorkerDescription] = Future()
        self.broken: FuzzcompileError | None = None
        self.changes: deque[Change] = deque()
        self.refused: dict[str, str] = {}
        self.connection: Connection | None = None
        self._charter, self._any_device = charter, any_device
        self._offers: dict[str, WorkerOffer] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._attending: dict[str, asyncio.Task[None]] = {}
        self._opening: set[str] = set()  # the workers that are being asked for the first time
        self._asked: float | None = None  # when the first worker made its offer
        self._narrowed = False
        self._alone = time.monotonic()

    @property
    def is_opening(self) -> bool:
        """True while a worker is queried, or starts its processes, for the first time: later queries may never end."""
        return bool(self._opening)

    @property
    def state(self) -> ClusterState:
        """The cluster as it is now."""
        members, connection = list(self.dispatcher.members.values()), self.connection  # other threads ask
        return ClusterState(
            scheduler=str(self.address) if connection is None else connection.scheduler,
            dashboard="" if connection is None else connection.dashboard,
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
                except (OSError, TimeoutError):
                    await self._reconnect()
                await asyncio.sleep(_TICK)
        except FuzzcompileError as error:
            self.fail(error)
        except Exception as error:  # an error of our own must not leave the campaign waiting for ever
            self.fail(EnvironmentUnfit(f"The cluster cannot be used: {type(error).__name__}: {error}."))
            raise

    def fail(self, error: FuzzcompileError) -> None:
        """Fail all tasks, those to come included."""
        self.broken = error
        self.dispatcher.fail_all(self.make_failure)
        if not self.first.done():
            self.first.set_exception(error)

    def make_failure(self) -> WorkerStartFailed:
        """Return the error of a task that can run no more."""
        failure = WorkerStartFailed("the cluster is lost", str(self.broken), final=True)
        failure.__cause__ = self.broken
        return failure

    async def close(self) -> None:
        """Keep the members no longer, end the campaign's processes on all workers, and disconnect."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping], timeout=2 * ENDS_WITHIN)  # what it was starting ends with it
        self._forget(*self._attending)
        if self.connection is not None:
            with contextlib.suppress(Exception):  # a worker that gets no message closes by its own time limit
                await self._ask(None, dask_host.close_host, self._charter.campaign, within=ANSWERS_WITHIN)
            await self.connection.ending.aclose()

    async def _connect(self, within: float) -> Connection:
        self.connection = connection = await Connection.open(self.address, within)
        connection.client.subscribe_topic(name_topic(self._charter.campaign), self._hear_beginning)
        self.dispatcher.connect(connection.client)
        return connection

    def _hear_beginning(self, event: tuple[float, Mapping[str, Any]]) -> None:
        self.dispatcher.mark_begun(event[1]["begun"], event[1]["worker"])

    async def _reconnect(self) -> None:
        """Wait for the scheduler to come back; its workers are all new then."""
        assert self.connection is not None
        lost, self.connection = self.connection, None
        self._forget(*self._attending)
        tasks = self.dispatcher.disconnect()
        self.changes.append(SchedulerLost(lost.scheduler, _PATIENCE))
        deadline = time.monotonic() + _PATIENCE
        await lost.ending.aclose()
        connection = None
        while connection is None:
            try:
                connection = await self._connect(min(ANSWERS_WITHIN, max(1.0, deadline - time.monotonic())))
            except FuzzcompileError as error:
                if time.monotonic() > deadline:
                    raise EnvironmentUnfit(
                        f"The Dask scheduler at {lost.scheduler} was lost and did not come back within "
                        f"{_PATIENCE:.0f} s; once it runs, the same command resumes the campaign."
                    ) from error
                await asyncio.sleep(_TICK)
        self._alone = time.monotonic()
        self.changes.append(SchedulerBack(connection.scheduler, tasks))

    async def _tick(self) -> None:
        assert self.connection is not None
        if self.connection.client.status != "running":
            raise OSError("the client has lost the scheduler")
        async with asyncio.timeout(ANSWERS_WITHIN):  # `wait_for` may swallow a cancellation (Python 3.11)
            present = await self.connection.client.nthreads()
        self._lose("it is gone", *(each for each in self.dispatcher.members.values() if each.address not in present))
        self._forget(*(self._attending.keys() - present.keys()))
        for address in present.keys() - self._attending.keys():
            self._attending[address] = asyncio.create_task(self._attend(address))
        if self.dispatcher.members or self.is_opening or not self.first.done():
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > _NO_WORKER_LIMIT:
            raise EnvironmentUnfit(
                f"The cluster at {self.address} has had no fitting Dask worker for {_NO_WORKER_LIMIT / 60:.0f} "
                "minutes; once it has some, the same command resumes the campaign."
            )

    async def _attend(self, address: str) -> None:
        """Admit a Dask worker or refuse it, and ask it how its tasks are until it is lost."""
        member = None
        try:
            self._opening.add(address)
            while member is None and address not in self.refused:
                try:
                    member = await self._admit_if_fit(address)
                finally:
                    self._opening.discard(address)
                await asyncio.sleep(_TICK)
            while member is not None and self.dispatcher.members.get(address) is member:
                await asyncio.sleep(_PULSE)
                await self._check_health(member)
        except Exception as error:  # the campaign goes on without it, and says why
            self._refuse(address, f"{type(error).__name__}: {format_message(error)}")

    async def _admit_if_fit(self, address: str) -> ClusterMember | None:
        """Admit a worker; None if it is refused, or does not answer yet."""
        answer = await self._ask(address, dask_host.offer, within=_ASKING)
        if isinstance(answer, OSError | TimeoutError) or answer is None:
            return None
        if isinstance(answer, Exception):
            return self._refuse(address, explain_failed_offer(answer))
        offer = self._offers[address] = pickle.loads(answer)
        await self._narrow()
        if (why := self.wanted.explain_refusal(offer)) is not None:
            return self._refuse(address, why)
        here = [each.slots for known, each in self._offers.items() if _parse_host(known) == _parse_host(address)]
        charter = replace(self._charter, slots=offer.slots, share=offer.slots / sum(here))
        answer = await self._ask(address, dask_host.open_host, charter, within=_OPENING)
        description = pickle.loads(answer) if isinstance(answer, bytes) else answer
        if isinstance(description, WorkerDescription):
            return self._admit(ClusterMember(address, offer.slots, description))
        if isinstance(description, UsageError) and not self.first.done():
            self.fail(description)  # the user's own plant or pass fails, and would everywhere
        elif isinstance(description, Exception) and not isinstance(description, OSError | TimeoutError):
            self._refuse(address, format_message(description).rstrip("."))
        return None

    async def _narrow(self) -> None:
        """Choose the kind of worker by the offers, once the first ones are there."""
        self._asked = self._asked or time.monotonic()
        while self._opening - self._offers.keys() and time.monotonic() - self._asked < _SETTLING and not self._narrowed:
            await asyncio.sleep(_TICK)
        if not self._narrowed:
            self.wanted = self.wanted.narrow(self._offers.values(), any_device=self._any_device)
            self._narrowed = any(self.wanted.explain_refusal(offer) is None for offer in self._offers.values())

    def _admit(self, member: ClusterMember) -> ClusterMember | None:
        here = member.surroundings
        if self.first.done() and (why := explain_difference(self.first.result(), here)) is not None:
            return self._refuse(member.address, why)
        self.dispatcher.add(member)
        torch = str(here.environment["torch"])
        self.changes.append(WorkerJoined(member.address, member.machine, member.slots, torch, here.device))
        if not self.first.done():
            self.first.set_result(here)
        return member

    def _refuse(self, address: str, why: str) -> ClusterMember | None:
        if address not in self.refused:
            self.refused[address] = why
            self.changes.append(WorkerRefused(address, why))
        return None

    async def _check_health(self, member: ClusterMember) -> None:
        answer = await self._ask(member.address, dask_host.pulse, self._charter.campaign, within=_ANSWER_LIMIT)
        if isinstance(answer, TimeoutError):
            self._lose(f"it has not answered for {_ANSWER_LIMIT:.0f} s", member)
        elif isinstance(answer, bytes):
            if (left := pickle.loads(answer)) is None:
                self._doubt(member, None, False)
            else:
                member.store_left(left)

    def _lose(self, why: str, *members: ClusterMember, blame: bool = True) -> None:
        lost = [each for each in members if self.dispatcher.members.get(each.address) is each]
        self._forget(*(member.address for member in lost))
        for member, tasks in zip(lost, self.dispatcher.drop(*lost, blame=blame), strict=True):
            self.changes.append(WorkerLost(member.address, member.machine, tasks, why))

    def _doubt(self, member: ClusterMember, error: Exception | None, gone: bool) -> None:
        """Drop a member that could not run a task: it is queried again, or refused if its processes cannot start."""
        fails = "" if error is None or gone else format_message(error).rstrip(".")
        self._lose(fails or ("it is gone" if gone else "it serves the campaign no longer"), member, blame=gone)
        if fails:
            self._refuse(member.address, fails)

    def _forget(self, *addresses: str) -> None:
        """Forget what is known of workers, so that they are attended anew if they are still there."""
        for address in addresses:
            self._offers.pop(address, None)
            self.refused.pop(address, None)
            if (task := self._attending.pop(address, None)) is not None and task is not asyncio.current_task():
                task.cancel()

    async def _ask(self, address: str | None, function: Callable[..., object], *args: object, within: float) -> Any:
        """Run a function on one Dask worker (None: all); return its result, or the exception that it raises there."""
        assert self.connection is not None
        workers = None if address is None else [address]
        try:
            async with asyncio.timeout(within):
                answers = await self.connection.client.run(function, *args, workers=workers, on_error="return")
        except (OSError, TimeoutError) as error:
            return error
        return answers.get(address)


def _parse_host(address: str) -> str:
    """Return the host in a Dask worker's address: workers of one host share its processors."""
    return address.rpartition("://")[2].rpartition(":")[0]
