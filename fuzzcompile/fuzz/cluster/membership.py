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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from typing import Any

import distributed

from fuzzcompile.fuzz.cluster import dask_host
from fuzzcompile.fuzz.cluster.cluster_messages import HealthReport, HostCharter, WorkerOffer, name_topic
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
from fuzzcompile.fuzz.cluster.dispatcher import (
    ClusterMember,
    Dispatcher,
    WorkerRequirements,
    explain_difference,
    explain_failed_offer,
    parse_host,
)
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError, format_message
from fuzzcompile.model.judge_task import WorkerDescription

# The connection to a scheduler, and the scheduler and workers of ``local:N``.

ANSWERS_WITHIN = 8.0
"""Seconds that a scheduler has to answer."""
ENDS_WITHIN = 10.0
"""Seconds that a client or the workers of ``local:N`` have to end."""


@dataclass
class Connection:
    """A client of a scheduler, and with ``local:N`` the scheduler and the Dask workers, which end with it."""

    client: distributed.Client
    scheduler: str
    cluster: distributed.LocalCluster | None = None

    @classmethod
    async def open(cls, address: ClusterAddress, within: float = ANSWERS_WITHIN) -> Connection:
        """Connect, for ``local:N`` to a scheduler and workers that are started for it.

        Dask's own configuration decides on certificates, time limits and the like.

        Raises:
            EnvironmentUnfit: no scheduler answers within so many seconds, or the connection is refused.
        """
        _silence()
        cluster: Any = None
        try:
            async with contextlib.AsyncExitStack() as undo:  # what has begun ends if the rest fails or is cancelled
                if address.local is not None:
                    _leave_interrupts_to_the_main_thread()
                    cluster = distributed.LocalCluster(
                        n_workers=address.local,
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        silence_logs=logging.CRITICAL,
                        asynchronous=True,
                    )
                    starting = asyncio.ensure_future(cluster)
                    undo.push_async_callback(_end, functools.partial(_close_started, cluster, starting))
                    await asyncio.shield(starting)
                scheduler = cluster.scheduler_address if cluster is not None else address.scheduler()
                client = distributed.Client(
                    scheduler, name="fuzzcompile", asynchronous=True, set_as_default=False, timeout=within
                )
                undo.push_async_callback(_end, functools.partial(client._close, fast=True))
                with warnings.catch_warnings(action="ignore"):  # versions are compared by what matters (`fitness`)
                    await asyncio.wait_for(client, within)
                undo.pop_all()
        except (OSError, TimeoutError) as error:
            raise EnvironmentUnfit(
                f"No Dask scheduler answers at {address}{_why(error)}: start one (`dask scheduler`) and workers (`dask "
                "worker ADDRESS`), or try --cluster local:2, which starts both on this machine."
            ) from error
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            raise EnvironmentUnfit(
                f"Dask cannot connect to {address}: {format_message(error)}. For tls:// its configuration names the "
                "certificates (distributed.comm.tls)."
            ) from error
        return cls(client, scheduler, cluster)

    @property
    def dashboard(self) -> str:
        """The URL of Dask's dashboard; empty if the scheduler has none."""
        with contextlib.suppress(Exception):
            return str(self.client.dashboard_link or "")
        return ""

    async def close(self) -> None:
        """Disconnect, and end the workers of ``local:N``."""
        for part in filter(None, (self.client, self.cluster)):
            await _end(part.close)


async def _close_started(cluster: Any, starting: asyncio.Future[Any]) -> None:
    """Close a cluster once it has started: if its start is cancelled, Dask leaves the workers running."""
    await asyncio.wait([starting])
    await cluster.close()


async def _end(close: Callable[[], Awaitable[object]]) -> None:
    with contextlib.suppress(Exception):  # what is gone already need not be closed
        await asyncio.wait_for(close(), ENDS_WITHIN)


def _leave_interrupts_to_the_main_thread() -> None:
    """Keep Ctrl-C from the processes that this thread starts, which the terminal sends it to as well.

    They inherit what the thread blocks. The tracker of multiprocessing unblocks it when it starts, and goes first.
    """
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _silence() -> None:
    """Silence Dask's logs: changes of the workers and the scheduler are reported as events.

    Its configuration gives some of its loggers levels of their own, ``distributed.client`` for one.
    """
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _why(error: BaseException) -> str:
    said = format_message(error, 200)
    return f" ({said})" if said else ""


_TICK = 1.0
_SETTLING = 3.0  # seconds from the first offer in which others count for which kind of worker the campaign takes
_ASKING = 30.0  # seconds that a Dask worker has to send its offer
_OPENING = 400.0  # seconds that it has to start its processes, which import torch
_PULSE = 15.0  # seconds after which a worker is asked again how its tasks are
_ANSWER_LIMIT = 60.0  # seconds without an answer after which it counts as lost, until it answers again
_PATIENCE = 60.0  # seconds that a lost scheduler has to come back
_NO_WORKER_LIMIT = 600.0  # seconds that a campaign waits for any worker once it had some


class Membership:
    """Keeps the members of a campaign.

    Args:
        address: the scheduler.
        charter: the charter of each worker, before its slots and share are filled in.
        wanted: which workers the campaign takes.
        any_device: True if cases may run on any device.
        dispatcher: sends tasks to the members.
        say: called with each change.
        fail: called once with the error after which no task will run any more.
    """

    def __init__(
        self,
        address: ClusterAddress,
        charter: HostCharter,
        wanted: WorkerRequirements,
        *,
        any_device: bool,
        say: Callable[[Change], object],
        fail: Callable[[FuzzcompileError], object],
    ) -> None:
        self.address, self.wanted = address, wanted
        self.dispatcher = Dispatcher(self._doubt)
        self.first: WorkerDescription | None = None
        self.refused: dict[str, str] = {}
        self.connection: Connection | None = None
        self._charter, self._any_device, self._report, self._fail = charter, any_device, say, fail
        self._offers: dict[str, WorkerOffer] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._queries: dict[str, asyncio.Task[None]] = {}  # what is being asked of each worker
        self._begun: set[tuple[str, str]] = set()  # by address, what each worker that is there was asked already
        self._firsts: set[asyncio.Task[None]] = set()  # what is being asked for the first time
        self._asked: float | None = None  # when the first worker made its offer
        self._narrowed = False
        self._alone = time.monotonic()

    @property
    def is_opening(self) -> bool:
        """True while a worker is queried, or starts its processes, for the first time: later queries may never end."""
        return bool(self._firsts)

    @property
    def state(self) -> ClusterState:
        """The cluster as it is now."""
        members = list(self.dispatcher.members.values())  # other threads ask
        connection = self.connection
        return ClusterState(
            connection.scheduler if connection is not None else str(self.address),
            connection.dashboard if connection is not None else "",
            len(members),
            len({member.machine for member in members}),
            sum(member.slots for member in members),
            sum(len(member.running) for member in members),
            connection is not None,
        )

    async def keep(self) -> None:
        """Keep the members until `close` or until this fails."""
        self._keeping = asyncio.current_task()
        try:
            await self._connect()
            while True:
                try:
                    await self._tick()
                except (OSError, TimeoutError):
                    await self._reconnect()
                await asyncio.sleep(_TICK)
        except FuzzcompileError as error:
            self._fail(error)

    async def close(self) -> None:
        """Keep the members no longer, end the campaign's processes on all workers, and disconnect."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping], timeout=2 * ENDS_WITHIN)  # what it was starting ends with it
        for task in self._queries.values():
            task.cancel()
        if self.connection is None:
            return
        with contextlib.suppress(Exception):  # a worker that gets no message closes by its own time limit
            await asyncio.wait_for(self._ask_all(dask_host.close_host, self._charter.campaign), ANSWERS_WITHIN)
        await self.connection.close()

    # -- the connection -------------------------------------------------------------------------------------------

    async def _connect(self, within: float | None = None) -> Connection:
        self.connection = connection = await Connection.open(self.address, within or ANSWERS_WITHIN)
        connection.client.subscribe_topic(name_topic(self._charter.campaign), self._hear_beginning)
        self.dispatcher.connect(connection.client)
        return connection

    def _hear_beginning(self, event: tuple[float, Mapping[str, Any]]) -> None:
        _, told = event
        self.dispatcher.mark_begun(told["begun"], told["worker"])

    async def _reconnect(self) -> None:
        """Wait for the scheduler to come back; its workers are all new then."""
        assert self.connection is not None
        lost, self.connection = self.connection, None
        for task in self._queries.values():
            task.cancel()
        self._queries.clear()
        self._begun.clear()
        self._offers.clear()
        tasks = self.dispatcher.disconnect()
        self._report(SchedulerLost(lost.scheduler, _PATIENCE))
        deadline = time.monotonic() + _PATIENCE
        await lost.close()
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
        self._report(SchedulerBack(connection.scheduler, tasks))

    async def _tick(self) -> None:
        assert self.connection is not None
        if self.connection.client.status != "running":
            raise OSError("the client has lost the scheduler")
        present = await asyncio.wait_for(self.connection.client.nthreads(), ANSWERS_WITHIN)
        self._begun = {(address, what) for address, what in self._begun if address in present}
        for address in [known for known in (*self._offers, *self.refused) if known not in present]:
            self._forget(address)
        self._lose("it is gone", *(each for each in self.dispatcher.members.values() if each.address not in present))
        for address in present:
            if address not in self._offers and address not in self.refused:
                self._begin(address, self._ask_offer(address), first="offer")
        self._choose()
        self._check_health()
        if self.dispatcher.members or self.is_opening or self.first is None:
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > _NO_WORKER_LIMIT:
            raise EnvironmentUnfit(
                f"The cluster at {self.address} has had no fitting Dask worker for {_NO_WORKER_LIMIT / 60:.0f} "
                "minutes; once it "
                "has some, the same command resumes the campaign."
            )

    # -- joining --------------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Admit or refuse the workers that have sent their offer."""
        if not self._narrowed:
            waits = self._asked is None or (self.is_opening and time.monotonic() - self._asked < _SETTLING)
            if waits:
                return
            self.wanted = self.wanted.narrow(self._offers.values(), any_device=self._any_device)
            self._narrowed = any(self.wanted.explain_refusal(offer) is None for offer in self._offers.values())
        for address, offer in self._offers.items():
            if address in self.dispatcher.members or address in self._queries or address in self.refused:
                continue
            why = self.wanted.explain_refusal(offer)
            if why is not None:
                self._refuse(address, why)
            else:
                self._begin(address, self._open(address, offer), first="open")

    async def _ask_offer(self, address: str) -> None:
        answer = await self._ask(address, dask_host.offer, within=_ASKING)
        if isinstance(answer, OSError | TimeoutError) or answer is None:
            return  # asked again, unless it is gone
        if isinstance(answer, Exception):
            self._refuse(address, explain_failed_offer(answer))
            return
        self._offers[address] = pickle.loads(answer)
        self._asked = self._asked or time.monotonic()

    async def _open(self, address: str, offer: WorkerOffer) -> None:
        here = [each.slots for known, each in self._offers.items() if parse_host(known) == parse_host(address)]
        charter = replace(self._charter, slots=offer.slots, share=offer.slots / sum(here))
        answer = await self._ask(address, dask_host.open_host, pickle.dumps(charter), within=_OPENING)
        if isinstance(answer, bytes):
            answer = pickle.loads(answer)
        if isinstance(answer, WorkerDescription):
            self._admit(ClusterMember(address, offer.slots, answer))
        elif isinstance(answer, UsageError) and self.first is None:
            self._fail(answer)  # the user's own plant or pass fails, and would everywhere
        elif isinstance(answer, Exception) and not isinstance(answer, OSError | TimeoutError):
            self._refuse(address, format_message(answer).rstrip("."))

    def _admit(self, member: ClusterMember) -> None:
        self.first = self.first or member.surroundings
        why = explain_difference(self.first, member.surroundings)
        if why is not None:
            self._refuse(member.address, why)
            return
        environment = member.surroundings.environment
        torch, device = str(environment["torch"]), member.surroundings.device
        self.dispatcher.add(member)
        self._report(WorkerJoined(member.address, member.machine, member.slots, torch, device))

    def _refuse(self, address: str, why: str) -> None:
        if address not in self.refused:
            self.refused[address] = why
            self._report(WorkerRefused(address, why))

    # -- losses ---------------------------------------------------------------------------------------------------

    def _lose(self, why: str, *members: ClusterMember, blame: bool = True) -> None:
        for member in members:
            self._forget(member.address)
        for member, tasks in zip(members, self.dispatcher.drop(*members, blame=blame), strict=True):
            self._report(WorkerLost(member.address, member.machine, tasks, why))

    def _doubt(self, member: ClusterMember, error: Exception | None, gone: bool) -> None:
        """Drop a member that could not run a task: it is queried again, or refused if its processes cannot start."""
        if gone:
            self._lose("it is gone", member)
        elif error is None:
            self._lose("it serves the campaign no longer", member, blame=False)
        else:
            why = format_message(error).rstrip(".")
            self._lose(why, member, blame=False)
            self._refuse(member.address, why)

    def _forget(self, address: str) -> None:
        self._offers.pop(address, None)
        self.refused.pop(address, None)
        if (task := self._queries.pop(address, None)) is not None:
            task.cancel()

    def _check_health(self) -> None:
        now = time.monotonic()
        for member in list(self.dispatcher.members.values()):
            if now - member.asked > _PULSE:
                member.asked = now
                self._begin(member.address, self._check_member(member))

    async def _check_member(self, member: ClusterMember) -> None:
        answer = await self._ask(member.address, dask_host.pulse, self._charter.campaign, within=_ANSWER_LIMIT)
        if self.dispatcher.members.get(member.address) is not member:
            return  # it was lost meanwhile
        if isinstance(answer, TimeoutError):
            self._lose(f"it has not answered for {_ANSWER_LIMIT:.0f} s", member)
        pulse: HealthReport | None = pickle.loads(answer) if isinstance(answer, bytes) else None
        if pulse is not None:
            member.store_left(pulse.left)
        elif isinstance(answer, bytes):
            self._doubt(member, None, False)

    # -- asking ---------------------------------------------------------------------------------------------------

    def _begin(self, address: str, asking: Any, *, first: str | None = None) -> None:
        """Start a query of a worker, one at a time; ``first`` names a query that counts as opening the first time."""
        if address in self._queries:
            asking.close()
            return
        task = self._queries[address] = asyncio.ensure_future(asking)
        if first is not None and (address, first) not in self._begun:
            self._begun.add((address, first))
            self._firsts.add(task)
        task.add_done_callback(lambda done: self._end(address, done))

    def _end(self, address: str, task: asyncio.Task[None]) -> None:
        self._firsts.discard(task)
        if self._queries.get(address) is task:
            del self._queries[address]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._refuse(address, f"{type(error).__name__}: {format_message(error)}")

    async def _ask(self, address: str, function: Callable[..., object], *args: object, within: float) -> Any:
        """Run a function on one Dask worker; return its result, or the exception that it raises there."""
        try:
            answers = await asyncio.wait_for(self._ask_all(function, *args, workers=[address]), within)
        except (OSError, TimeoutError) as error:
            return error
        return answers.get(address)

    async def _ask_all(
        self, function: Callable[..., object], *args: object, workers: list[str] | None = None
    ) -> dict[str, Any]:
        assert self.connection is not None
        answers: dict[str, Any] = await self.connection.client.run(function, *args, workers=workers, on_error="return")
        return answers
