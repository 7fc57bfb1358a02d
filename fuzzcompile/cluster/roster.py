"""Membership of Dask workers in a campaign: queries each that joins, admits or refuses it, and detects losses.

Runs in the event loop of the connection, beside the `Dispatcher`.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuzzcompile.cluster import host
from fuzzcompile.cluster.address import ClusterAddress
from fuzzcompile.cluster.changes import (
    Change,
    ClusterState,
    SchedulerBack,
    SchedulerLost,
    WorkerJoined,
    WorkerLost,
    WorkerRefused,
)
from fuzzcompile.cluster.connecting import ANSWERS_WITHIN, ENDS_WITHIN, Connection
from fuzzcompile.cluster.dispatching import Dispatcher, Member
from fuzzcompile.cluster.fitness import Wanted, machine_of, silent, unlike
from fuzzcompile.cluster.messages import Charter, Offer, Pulse
from fuzzcompile.errors import EnvironmentUnfit, FuzzcompileError, UsageError, message_of
from fuzzcompile.worker.tasks import Surroundings

_TICK = 1.0
_SETTLING = 3.0  # seconds from the first offer in which others count for which kind of worker the campaign takes
_ASKING = 30.0  # seconds that a Dask worker has to send its offer
_OPENING = 400.0  # seconds that it has to start its processes, which import torch
_PULSE = 15.0  # seconds after which a worker is asked again how its tasks are
_DEAF = 60.0  # seconds without an answer after which it counts as lost, until it answers again
_PATIENCE = 60.0  # seconds that a lost scheduler has to come back
_ALONE = 600.0  # seconds that a campaign waits for any worker once it had some


class Roster:
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
        charter: Charter,
        wanted: Wanted,
        *,
        any_device: bool,
        say: Callable[[Change], object],
        fail: Callable[[FuzzcompileError], object],
    ) -> None:
        self.address, self.wanted = address, wanted
        self.dispatcher = Dispatcher(self._doubt)
        self.first: Surroundings | None = None
        self.refused: dict[str, str] = {}
        self.connection: Connection | None = None
        self._charter, self._any_device, self._say, self._fail = charter, any_device, say, fail
        self._offers: dict[str, Offer] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._errands: dict[str, asyncio.Task[None]] = {}  # what is being asked of each worker
        self._begun: set[tuple[str, str]] = set()  # by address, what each worker that is there was asked already
        self._firsts: set[asyncio.Task[None]] = set()  # what is being asked for the first time
        self._asked: float | None = None  # when the first worker made its offer
        self._narrowed = False
        self._alone = time.monotonic()

    @property
    def opening(self) -> bool:
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
        for task in self._errands.values():
            task.cancel()
        if self.connection is None:
            return
        with contextlib.suppress(Exception):  # a worker that gets no message closes by its own time limit
            await asyncio.wait_for(self._ask_all(host.close_host, self._charter.campaign), ANSWERS_WITHIN)
        await self.connection.close()

    # -- the connection -------------------------------------------------------------------------------------------

    async def _connect(self, within: float | None = None) -> Connection:
        self.connection = connection = await Connection.open(self.address, within or ANSWERS_WITHIN)
        self.dispatcher.connect(connection.client)
        return connection

    async def _reconnect(self) -> None:
        """Wait for the scheduler to come back; its workers are all new then."""
        assert self.connection is not None
        lost, self.connection = self.connection, None
        for task in self._errands.values():
            task.cancel()
        self._errands.clear()
        self._begun.clear()
        self._offers.clear()
        tasks = self.dispatcher.disconnect()
        self._say(SchedulerLost(lost.scheduler, _PATIENCE))
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
        self._say(SchedulerBack(connection.scheduler, tasks))

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
        self._feel_pulses()
        if self.dispatcher.members or self.opening or self.first is None:
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > _ALONE:
            raise EnvironmentUnfit(
                f"The cluster at {self.address} has had no fitting Dask worker for {_ALONE / 60:.0f} minutes; once it "
                "has some, the same command resumes the campaign."
            )

    # -- joining --------------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Admit or refuse the workers that have sent their offer."""
        if not self._narrowed:
            waits = self._asked is None or (self.opening and time.monotonic() - self._asked < _SETTLING)
            if waits:
                return
            self.wanted = self.wanted.narrowed(self._offers.values(), any_device=self._any_device)
            self._narrowed = any(self.wanted.refusal(offer) is None for offer in self._offers.values())
        for address, offer in self._offers.items():
            if address in self.dispatcher.members or address in self._errands or address in self.refused:
                continue
            why = self.wanted.refusal(offer)
            if why is not None:
                self._refuse(address, why)
            else:
                self._begin(address, self._open(address, offer), first="open")

    async def _ask_offer(self, address: str) -> None:
        answer = await self._ask(address, host.offer, within=_ASKING)
        if isinstance(answer, OSError | TimeoutError) or answer is None:
            return  # asked again, unless it is gone
        if isinstance(answer, Exception):
            self._refuse(address, silent(answer))
            return
        self._offers[address] = pickle.loads(answer)
        self._asked = self._asked or time.monotonic()

    async def _open(self, address: str, offer: Offer) -> None:
        here = [each.slots for known, each in self._offers.items() if machine_of(known) == machine_of(address)]
        charter = replace(self._charter, slots=offer.slots, share=offer.slots / sum(here))
        answer = await self._ask(address, host.open_host, pickle.dumps(charter), within=_OPENING)
        if isinstance(answer, bytes):
            answer = pickle.loads(answer)
        if isinstance(answer, Surroundings):
            self._admit(Member(address, offer.slots, answer))
        elif isinstance(answer, UsageError) and self.first is None:
            self._fail(answer)  # the user's own plant or pass fails, and would everywhere
        elif isinstance(answer, Exception) and not isinstance(answer, OSError | TimeoutError):
            self._refuse(address, message_of(answer).rstrip("."))

    def _admit(self, member: Member) -> None:
        self.first = self.first or member.surroundings
        why = unlike(self.first, member.surroundings)
        if why is not None:
            self._refuse(member.address, why)
            return
        environment = member.surroundings.environment
        torch, device = str(environment["torch"]), member.surroundings.device
        self.dispatcher.add(member)
        self._say(WorkerJoined(member.address, member.machine, member.slots, torch, device))

    def _refuse(self, address: str, why: str) -> None:
        if address not in self.refused:
            self.refused[address] = why
            self._say(WorkerRefused(address, why))

    # -- losses ---------------------------------------------------------------------------------------------------

    def _lose(self, why: str, *members: Member, blame: bool = True) -> None:
        for member in members:
            self._forget(member.address)
        for member, tasks in zip(members, self.dispatcher.drop(*members, blame=blame), strict=True):
            self._say(WorkerLost(member.address, member.machine, tasks, why))

    def _doubt(self, member: Member, error: Exception | None, gone: bool) -> None:
        """Drop a member that could not run a task: it is queried again, or refused if its processes cannot start."""
        if gone:
            self._lose("it is gone", member)
        elif error is None:
            self._lose("it serves the campaign no longer", member, blame=False)
        else:
            why = message_of(error).rstrip(".")
            self._lose(why, member, blame=False)
            self._refuse(member.address, why)

    def _forget(self, address: str) -> None:
        self._offers.pop(address, None)
        self.refused.pop(address, None)
        if (task := self._errands.pop(address, None)) is not None:
            task.cancel()

    def _feel_pulses(self) -> None:
        now = time.monotonic()
        for member in list(self.dispatcher.members.values()):
            if now - member.asked > _PULSE:
                member.asked = now
                self._begin(member.address, self._feel_pulse(member))

    async def _feel_pulse(self, member: Member) -> None:
        answer = await self._ask(member.address, host.pulse, self._charter.campaign, within=_DEAF)
        if self.dispatcher.members.get(member.address) is not member:
            return  # it was lost meanwhile
        if isinstance(answer, TimeoutError):
            self._lose(f"it has not answered for {_DEAF:.0f} s", member)
        pulse: Pulse | None = pickle.loads(answer) if isinstance(answer, bytes) else None
        if pulse is not None:
            member.tell(pulse.left)
        elif isinstance(answer, bytes):
            self._doubt(member, None, False)

    # -- asking ---------------------------------------------------------------------------------------------------

    def _begin(self, address: str, asking: Any, *, first: str | None = None) -> None:
        """Start a query of a worker, one at a time; ``first`` names a query that counts as opening the first time."""
        if address in self._errands:
            asking.close()
            return
        task = self._errands[address] = asyncio.ensure_future(asking)
        if first is not None and (address, first) not in self._begun:
            self._begun.add((address, first))
            self._firsts.add(task)
        task.add_done_callback(lambda done: self._end(address, done))

    def _end(self, address: str, task: asyncio.Task[None]) -> None:
        self._firsts.discard(task)
        if self._errands.get(address) is task:
            del self._errands[address]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._refuse(address, f"{type(error).__name__}: {message_of(error)}")

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
