"""A Dask cluster as a pool of workers: it admits or refuses Dask workers, and sends them the tasks of a campaign.

Each task is pinned to a worker with a free slot: `tests/fuzz/cluster/test_dask_schedules.py` shows why Dask cannot
place them. Everything of Dask happens on a thread of its own, in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import re
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import distributed

from fuzzcompile.diagnosis.worker.minimize_task import MinimizeTask
from fuzzcompile.diagnosis.worker.worker_loss import drop_blame
from fuzzcompile.fuzz.cluster import dask_host
from fuzzcompile.fuzz.cluster.cluster_messages import (
    CallOnUnpickling,
    HostCharter,
    Unhosted,
    WorkerOffer,
    WorkerRequirements,
    explain_difference,
    explain_failed_offer,
    read_named_files,
)
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress, ClusterChange, ClusterState
from fuzzcompile.fuzz.cluster.dask_client import connect
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError, describe_error, format_message
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.judge_task import NamedFunction, WorkerDescription
from fuzzcompile.run.pool.worker import WorkerCrashed, WorkerStartFailed, WorkerStopped
from fuzzcompile.run.pool.worker_pool import Call, TaskOptions, TaskPool, WorkerState

# A task that has run on so many lost Dask workers, or was sent so often, as it may end them before they can say that it
# has begun, may be what ends them: it is not run again.
_MOST_LOST, _MOST_SENT = 3, 12
_TICK = 1.0
_ANSWERS_WITHIN = 8.0  # seconds that a scheduler has to answer
_GATHERING = 60.0  # seconds for a first worker that fits
_SETTLING = 3.0  # seconds from the first offer in which others count for which kind of worker the campaign takes
_ASKING = 30.0  # seconds that a Dask worker has to send its offer
_OPENING = 400.0  # seconds that it has to start its processes, which import torch
_PULSE = 15.0  # seconds after which a worker is asked again how its tasks are
_ANSWER_LIMIT = 60.0  # seconds without an answer after which it counts as lost, until it answers again
_PATIENCE = 60.0  # seconds that a lost scheduler has to come back
_NO_WORKER_LIMIT = 600.0  # seconds that a campaign waits for any worker once it had some
_ENDS_WITHIN = 40.0
# Beside one task a slot, so many wait here for the slot that is free next: drawing a case takes the engine a while.
_SURPLUS = 0.25
_ANSWER, _OPEN = (NamedFunction(f"fuzzcompile.fuzz.cluster.dask_host:{name}") for name in ("answer", "open_local"))


@dataclass(eq=False, repr=False)
class ClusterTask(Future[Any]):
    """A task that waits for a worker or runs on one, and its future."""

    campaign: str
    number: int
    call: Call
    options: TaskOptions  # but for those below
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
        return f"{first or 'task'}-{rest}-{self.campaign}-{self.number:x}.{self.attempt}"

    def pack(self) -> bytes:
        """Return its call for a Dask worker: unpickling it there runs it (`dask_host.answer`).

        It is compressed: a task names every bug that needs no further proof, and of 2,000 such 20 of 200 kB stay.
        """
        call = pickle.dumps((*self.call, {**self.options, "label": self.label}), pickle.HIGHEST_PROTOCOL)
        return pickle.dumps(CallOnUnpickling(_ANSWER, (self.campaign, self.number, zlib.compress(call, 1))))

    def begin(self) -> bool:
        """Mark the future as running; return False if it was cancelled, of which its waiters are told."""
        return self.running() or self.set_running_or_notify_cancel()


@dataclass(eq=False)
class ClusterWorker:
    """A Dask worker that is asked, refused or admitted: it has slots once it is admitted, and tasks by number."""

    address: str
    slots: int = 0
    surroundings: WorkerDescription = field(default_factory=lambda: WorkerDescription({}, ""))
    offer: WorkerOffer | None = None
    opening: bool = False  # for the first time; later, it may never end
    refused: str | None = None
    attending: asyncio.Task[None] | None = None
    running: dict[int, ClusterTask] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self.slots - len(self.running)

    @property
    def machine(self) -> str:
        """The identifier of its machine."""
        return str(self.surroundings.environment.get("machine", "unknown"))

    @property
    def host(self) -> str:
        """The host in its address: workers of one host share its processors."""
        return self.address.rpartition("://")[2].rpartition(":")[0]

    def take_tasks(self) -> list[ClusterTask]:
        """Take its tasks from it; its answers are ignored from now on."""
        taken, self.running = list(self.running.values()), {}
        for task in taken:
            if task.sent is not None and task.sent is not asyncio.current_task():
                task.sent.cancel()
        return taken

    def store_left(self, left: Mapping[int, Mapping[str, str]]) -> None:
        """Store and pass on intermediate results of its tasks, by task number."""
        for number, task in self.running.items():
            for name, text in left.get(number, {}).items():
                task.left[name] = text
                if task.on_left is not None:
                    task.on_left(name, text)


class ClusterPool(TaskPool):
    """Runs tasks on the Dask workers of a cluster that fit a campaign, and on those that join later.

    A task of a lost Dask worker runs again on another one, unnoticed, up to three times; then its future fails with
    WorkerCrashed. Otherwise futures fail as those of a local pool do. Workers must have ``torch`` (None: the version
    that most of them have); ``most`` tasks are submitted at once (None: what the workers take).
    """

    def __init__(
        self,
        address: ClusterAddress,
        conditions: Conditions,
        *,
        torch: str | None = None,
        most: int | None = None,
        opens: Callable[..., Any] = _OPEN,
    ) -> None:
        self._address, self._most = address, most
        name = f"fuzzcompile-{uuid.uuid4().hex[:8]}"
        self._charter = HostCharter(name, conditions, read_named_files(conditions), opens)
        self._wanted = WorkerRequirements(torch, True if conditions.device.startswith("cuda") else None)
        self._any_device = conditions.device != "auto" or conditions.target is not None
        self._narrowed, self._asked = False, 0.0  # when the first worker made its offer
        self._first: Future[WorkerDescription] = Future()  # the first worker's, or why none will come any more
        self._broken: FuzzcompileError | None = None  # why no task will run any more
        self._changes: deque[ClusterChange] = deque()
        self._client: distributed.Client | None = None  # None while there is no connection
        self._scheduler = str(address)
        self._known: dict[str, ClusterWorker] = {}
        self._waiting: deque[ClusterTask] = deque()
        self._numbers = itertools.count()
        self._alone = time.monotonic()  # when the last worker was there
        self._left = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="cluster", daemon=True)

    # -- for the campaign, on its own threads ---------------------------------------------------------------------

    def wait_for_worker(self, timeout: float | None = None) -> WorkerDescription:
        """Join the cluster, wait for a first worker, a minute or more while one starts, and return where it runs."""
        begun = time.monotonic()
        if self._thread.ident is None:
            self._thread.start()
        while True:
            try:
                return self._first.result(0.2)
            except TimeoutError:
                over = time.monotonic() - begun
                opening = self._client is None or any(worker.opening for worker in list(self._known.values()))
                if (over >= _GATHERING and not opening) or (timeout is not None and over >= timeout):
                    raise EnvironmentUnfit(self._explain_no_worker(over)) from None

    def _explain_no_worker(self, seconds: float) -> str:
        known, address = sorted(self._known.items()), self._address
        if refused := [f"{each}: {worker.refused}" for each, worker in known if worker.refused is not None]:
            more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
            return f"No Dask worker of {address} fits this campaign: {'; '.join(refused[:3])}{more}."
        if self._client is None:
            return f"The Dask scheduler at {address} had not answered after {seconds:.0f} s. Give more budget."
        if any(worker.opening for _, worker in known):
            return f"No Dask worker of {address} had started its processes after {seconds:.0f} s. Give more budget."
        return f"The scheduler at {address} has no workers: start some with `dask worker {address}`."

    def put(self, call: Call, label: str, options: TaskOptions) -> Future[Any]:
        """Have a Dask worker run a call (`TaskPool.put`); on a lost cluster, its future fails."""
        on_left, not_on = options.pop("on_left", None), frozenset(options.pop("not_on", ()))
        task = ClusterTask(self._charter.campaign, next(self._numbers), call, options, label, on_left, not_on)
        try:
            self._loop.call_soon_threadsafe(self._add_task, task)
        except RuntimeError:  # the cluster was left
            task.set_exception(self._make_failure())
        return task

    @property
    def capacity(self) -> int:
        """The number of tasks to submit at once: a few more than the workers run now.

        It is 0 while there are no workers, and 1 once the cluster is lost: that task's future fails with the reason.
        """
        if self._broken is not None:
            return 1
        slots = self.state.slots
        taken = slots + max(2, int(_SURPLUS * slots)) if slots else 0
        return taken if self._most is None else min(taken, self._most)

    def workers(self) -> list[WorkerState]:
        """Return the current state of each slot of the Dask workers."""
        states: list[WorkerState] = []
        for worker in self._members():
            running: list[tuple[str | None, float | None]] = [(x.label, x.since) for x in list(worker.running.values())]
            for task in running + [(None, None)] * (worker.slots - len(running)):
                states.append(WorkerState(len(states), None, worker.surroundings.device, True, *task))
        return states

    def environment_of(self, future: Future[Any]) -> Mapping[str, object] | None:
        """Return the environment of the worker that ran a task which has ended."""
        return future.environment if isinstance(future, ClusterTask) else None

    def environments(self) -> list[Mapping[str, object]]:
        """Return the environments in which tasks run now, one for each machine."""
        return list({worker.machine: worker.surroundings.environment for worker in self._members()}.values())

    @property
    def state(self) -> ClusterState:
        """The cluster as it is now."""
        members, client, dashboard = self._members(), self._client, ""
        with contextlib.suppress(Exception):  # the scheduler may have none
            dashboard = str((client and client.dashboard_link) or "")
        scheduler, machines = str(self._address) if client is None else self._scheduler, {x.machine for x in members}
        slots, busy = sum(x.slots for x in members), sum(len(x.running) for x in members)
        return ClusterState(scheduler, dashboard, len(members), len(machines), slots, busy, client is not None)

    def changes(self) -> list[ClusterChange]:
        """Return the changes of the cluster since the last call."""
        return [self._changes.popleft() for _ in range(len(self._changes))]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the campaign on the cluster; there is no waiting for tasks."""
        del wait, cancel_futures
        self.kill_workers()

    def kill_workers(self) -> None:
        """Stop now: waiting tasks are cancelled, running ones fail with WorkerStopped; workers end their processes."""
        self._broken = self._broken or EnvironmentUnfit("The cluster was left.")
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._left.set)
            self._thread.join(_ENDS_WITHIN)
        else:  # it was never joined
            self._loop.close()

    def _members(self) -> list[ClusterWorker]:
        return [worker for worker in list(self._known.values()) if worker.slots]

    # -- the connection; from here on, all runs in the event loop -------------------------------------------------

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        keeping = asyncio.create_task(self._keep())
        await self._left.wait()
        self._settle_all(WorkerStopped, cancel=True)
        keeping.cancel()
        await asyncio.wait([keeping], timeout=_ENDS_WITHIN)

    async def _keep(self) -> None:
        """Attend the workers until this is cancelled, or until the scheduler or all workers are gone for too long."""
        tasks, deadline = 0, 0.0  # what begins anew, and when the scheduler has to be back, if it was lost
        try:
            while True:
                async with AsyncExitStack() as ending:  # what has begun ends if the rest fails or is cancelled
                    try:
                        client, scheduler = await connect(self._address, ending, _ANSWERS_WITHIN)
                    except FuzzcompileError as error:
                        if time.monotonic() < deadline:
                            await asyncio.sleep(_TICK)
                            continue
                        if not deadline:
                            raise
                        raise EnvironmentUnfit(
                            f"The Dask scheduler at {self._scheduler} was lost and did not come back within "
                            f"{_PATIENCE:.0f} s; once it runs, the same command resumes the campaign."
                        ) from error
                    if deadline:
                        again = f"The Dask scheduler at {scheduler} is back; {tasks} running cases begin anew"
                        self._report("scheduler_back", again, scheduler=scheduler, tasks=tasks)
                    client.subscribe_topic(self._charter.campaign, self._mark_begun)
                    self._client, self._scheduler, self._alone = client, scheduler, time.monotonic()
                    await self._attend_all(client)
                    self._client, deadline = None, time.monotonic() + _PATIENCE
                    tasks = self._lose("", *self._known.values(), blame=False, report=False)  # all will be new
                    waits = f"The Dask scheduler at {scheduler} is lost; the campaign waits {_PATIENCE:.0f} s for it"
                    self._report("scheduler_lost", waits, scheduler=scheduler, patience=_PATIENCE)
        except FuzzcompileError as error:
            self._fail(error)
        except Exception as error:  # an error of our own must not leave the campaign waiting for ever
            self._fail(EnvironmentUnfit(f"The cluster cannot be used: {describe_error(error)}."))

    async def _attend_all(self, client: distributed.Client) -> None:
        """Attend the workers until the scheduler is lost; if this ends otherwise, the campaign's processes end too."""
        try:
            while client.status == "running":
                await self._tick(client)
                await asyncio.sleep(_TICK)
        except OSError:
            return
        except BaseException:
            self._lose("", *self._known.values(), blame=False, report=False)
            with contextlib.suppress(Exception):  # else each host ends by its own time limit
                await self._ask(None, dask_host.close_host, self._charter.campaign, within=_ANSWERS_WITHIN)
            raise

    async def _tick(self, client: distributed.Client) -> None:
        async with asyncio.timeout(_ANSWERS_WITHIN):  # `wait_for` may swallow a cancellation (Python 3.11)
            present = await client.nthreads()
        self._lose("it is gone", *(worker for address, worker in self._known.items() if address not in present))
        for address in present.keys() - self._known.keys():
            worker = self._known[address] = ClusterWorker(address, opening=True)
            worker.attending = asyncio.create_task(self._attend(worker))
        if not self._first.done() or any(worker.slots or worker.opening for worker in self._known.values()):
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > _NO_WORKER_LIMIT:
            raise EnvironmentUnfit(
                f"The cluster at {self._address} has had no fitting Dask worker for {_NO_WORKER_LIMIT / 60:.0f} "
                "minutes; once it has some, the same command resumes the campaign."
            )

    def _report(self, event: str, sentence: str, **fields: object) -> None:
        self._changes.append(ClusterChange(event, sentence, fields))

    # -- workers --------------------------------------------------------------------------------------------------

    async def _attend(self, worker: ClusterWorker) -> None:
        """Admit a Dask worker or refuse it, and ask it how its tasks are until it is lost."""
        try:
            while not worker.slots:
                try:
                    await self._admit(worker)
                except OSError:  # it does not answer yet
                    await asyncio.sleep(_TICK)
                finally:
                    worker.opening = False
            while self._known.get(worker.address) is worker:
                await asyncio.sleep(_PULSE)
                try:
                    left = await self._ask(worker, dask_host.pulse, self._charter.campaign, within=_ANSWER_LIMIT)
                except TimeoutError:
                    self._lose(f"it has not answered for {_ANSWER_LIMIT:.0f} s", worker)
                except Exception:  # it is asked again, unless it is gone, and the scheduler says so
                    continue
                else:
                    if left is None:
                        self._lose("it serves the campaign no longer", worker, blame=False)
                    else:
                        worker.store_left(left)
        except Exception as error:  # the campaign goes on without it, and says why
            said = format_message(error) if isinstance(error, FuzzcompileError) else describe_error(error)
            self._refuse(worker, said.rstrip("."))

    async def _admit(self, worker: ClusterWorker) -> None:
        """Admit a worker; raise EnvironmentUnfit if it does not fit, and OSError if it does not answer."""
        try:
            worker.offer = offer = await self._ask(worker, dask_host.offer, within=_ASKING)
        except OSError:
            raise
        except Exception as error:
            raise EnvironmentUnfit(explain_failed_offer(error)) from error
        await self._narrow()
        if (why := self._wanted.explain_refusal(offer)) is not None:
            raise EnvironmentUnfit(why)
        here = [each.offer for each in self._known.values() if each.host == worker.host]
        share = offer.slots / sum(each.slots for each in here if each is not None)
        charter = replace(self._charter, slots=offer.slots, share=share)
        try:
            surroundings = await self._ask(worker, dask_host.open_host, charter, within=_OPENING)
        except UsageError as error:
            if not self._first.done():
                self._fail(error)  # the user's own plant or pass fails, and would everywhere
            raise
        self._welcome(worker, offer.slots, surroundings)

    async def _narrow(self) -> None:
        """Choose the kind of worker by the first offers that fit."""
        self._asked, known = self._asked or time.monotonic(), self._known.values()
        while (
            not self._narrowed
            and time.monotonic() - self._asked < _SETTLING
            and any(worker.opening and worker.offer is None for worker in known)
        ):
            await asyncio.sleep(_TICK)
        if not self._narrowed:
            offers = [worker.offer for worker in known if worker.offer is not None]
            self._wanted = self._wanted.narrow(offers, any_device=self._any_device)
            self._narrowed = any(self._wanted.explain_refusal(offer) is None for offer in offers)

    def _welcome(self, worker: ClusterWorker, slots: int, here: WorkerDescription) -> None:
        """Send tasks to this worker too; raise EnvironmentUnfit if its results do not compare with the first one's."""
        if self._first.done() and (why := explain_difference(self._first.result(), here)) is not None:
            raise EnvironmentUnfit(why)
        worker.surroundings, worker.slots = here, slots
        torch, device, machine = str(here.environment["torch"]), here.device, worker.machine
        takes = f"{count_noun(slots, 'case')} at a time on {device}, torch {torch}, machine {machine}"
        fields = {"worker": worker.address, "machine": machine, "slots": slots, "torch": torch, "device": device}
        self._report("worker_joined", f"Worker {worker.address} joins: {takes}", **fields)
        if not self._first.done():
            self._first.set_result(here)
        self._place()

    def _refuse(self, worker: ClusterWorker, why: str) -> None:
        worker.refused = why
        self._report("worker_refused", f"Worker {worker.address} is refused: {why}", worker=worker.address, why=why)

    async def _ask(
        self, worker: ClusterWorker | None, function: Callable[..., object], *args: object, within: float
    ) -> Any:
        """Run a function on one Dask worker (None: all), and return its result; raise what it raises there."""
        assert self._client is not None
        workers = None if worker is None else [worker.address]
        async with asyncio.timeout(within):
            answers = await self._client.run(function, *args, workers=workers, on_error="return")
        answer = answers.get(worker.address, OSError("it is gone")) if worker is not None else None
        answer = pickle.loads(answer) if isinstance(answer, bytes) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _lose(self, why: str, *workers: ClusterWorker, blame: bool = True, report: bool = True) -> int:
        """Forget workers, and return how many of their tasks begin anew. ``blame``: a task may have ended its worker.

        Workers that are lost together are dropped together, so that none of them gets a task of another one. One that
        is still there is attended anew.
        """
        again: list[ClusterTask] = []
        for worker in workers:
            if self._known.get(worker.address) is not worker:
                continue
            del self._known[worker.address]
            if worker.attending is not None and worker.attending is not asyncio.current_task():
                worker.attending.cancel()
            tasks = [task for task in worker.take_tasks() if self._prepare_retry(task, worker, blame)]
            again += tasks
            if report and worker.slots:
                number, where = len(tasks), f"Worker {worker.address} on machine {worker.machine}"
                anew = f"; {number} running there {'begins' if number == 1 else 'begin'} anew" if tasks else ""
                fields = {"worker": worker.address, "machine": worker.machine, "tasks": number, "why": why}
                self._report("worker_lost", f"{where} is lost: {why}{anew}", **fields)
        self._waiting.extendleft(reversed(again))
        self._place()
        return len(again)

    def _prepare_retry(self, task: ClusterTask, worker: ClusterWorker, blame: bool) -> bool:
        """Prepare a task whose worker is lost to run again; return False if it fails instead."""
        if blame and task.began:
            task.lost.append(worker.address)
        left = drop_blame(task.left)
        if len(task.lost) < _MOST_LOST and task.attempt < _MOST_SENT:
            if left:  # a minimization goes on with it
                function, args, kwargs = task.call
                args = tuple(each.resume(left) if isinstance(each, MinimizeTask) else each for each in args)
                task.call = (function, args, kwargs)
            return True
        crash = WorkerCrashed(None, f"Dask workers were lost while they ran it: {', '.join(task.lost)}")
        crash.left = left
        task.environment = worker.surroundings.environment
        task.set_exception(crash)
        return False

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _add_task(self, task: ClusterTask) -> None:
        if self._broken is None:
            self._waiting.append(task)
            self._place()
        elif task.begin():
            task.set_exception(self._make_failure())

    def _settle_all(self, error: Callable[[], Exception], *, cancel: bool = False) -> None:
        """Settle every task with an error: none will run any more. With ``cancel``, waiting tasks are cancelled."""
        for task in self._waiting if cancel else ():
            task.cancel()
        running = [task for worker in self._known.values() for task in worker.take_tasks()]
        for task in (*running, *self._waiting):
            if task.begin():
                task.set_exception(error())
        self._waiting.clear()

    def _fail(self, error: FuzzcompileError) -> None:
        self._broken = error
        self._settle_all(self._make_failure)
        if not self._first.done():
            self._first.set_exception(error)

    def _make_failure(self) -> WorkerStartFailed:
        failure = WorkerStartFailed("the cluster is lost", str(self._broken), final=True)
        failure.__cause__ = self._broken
        return failure

    def _place(self) -> None:
        """Send each waiting task that a worker is free for."""
        machines = {worker.machine for worker in self._known.values() if worker.slots}
        free = [worker for worker in self._known.values() if worker.free > 0]
        for task in list(self._waiting):
            if not free or self._client is None:
                break
            elsewhere = machines - task.not_on or machines  # on any, if all have tried it
            if fits := [worker for worker in free if worker.machine in elsewhere]:
                self._waiting.remove(task)
                if task.begin():
                    worker = max(fits, key=lambda each: each.free)
                    worker.running[task.number] = task
                    task.attempt, task.began, task.since = task.attempt + 1, False, time.monotonic()
                    task.sent = asyncio.create_task(self._run(task, worker, self._client))
                    free = [each for each in free if each.free > 0]

    def _mark_begun(self, event: tuple[float, Mapping[str, Any]]) -> None:
        worker = self._known.get(event[1]["worker"])
        if worker is not None and (task := worker.running.get(event[1]["begun"])) is not None:
            task.began = True

    async def _run(self, task: ClusterTask, worker: ClusterWorker, client: distributed.Client) -> None:
        sent, value, cause = None, None, None
        error: Exception | None = None
        try:
            pinned = {"workers": [worker.address], "allow_other_workers": False}
            sent = client.submit(pickle.loads, task.pack(), key=task.key, **pinned, pure=False)
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
            self._lose("it is gone", worker)
        elif isinstance(error, Unhosted | WorkerStartFailed):
            lacks = error.__cause__ if isinstance(error, Unhosted) else error
            why = "it serves the campaign no longer" if lacks is None else format_message(lacks).rstrip(".")
            self._lose(why, worker, blame=False)
            if lacks is not None:
                self._known[worker.address] = ClusterWorker(worker.address)  # which nothing attends
                self._refuse(self._known[worker.address], why)
        else:
            del worker.running[task.number]
            task.environment = worker.surroundings.environment
            if error is None:
                task.set_result(value)
            else:
                task.set_exception(error)
            self._place()
