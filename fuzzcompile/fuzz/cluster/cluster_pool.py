"""A Dask cluster as a pool of workers: tasks of campaigns run on the Dask workers that fit.

Everything of Dask happens on a thread of its own, in one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from fuzzcompile.fuzz.cluster.cluster_messages import ClusterCall, HostCharter, PackedConditions, pack
from fuzzcompile.fuzz.cluster.cluster_state import Change, ClusterAddress, ClusterState, WorkerJoined
from fuzzcompile.fuzz.cluster.dispatcher import ClusterFuture, ClusterTask, WorkerRequirements
from fuzzcompile.fuzz.cluster.membership import Membership
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.run.pool.worker import WorkerStartFailed, WorkerStopped
from fuzzcompile.run.pool.worker_pool import TaskPool
from fuzzcompile.run.pool.worker_slot import WorkerState

T = TypeVar("T")

_GATHERING = 60.0  # seconds for a first worker that fits
_ENDS_WITHIN = 40.0
_REST_WITHIN = 3.0
# Beside one task a slot, so many wait here for the slot that is free next: drawing a case takes the engine a while.
_SURPLUS = 0.25


class ClusterPool(TaskPool):
    """Runs tasks on the Dask workers of a cluster that fit a campaign, and on those that join later.

    A task of a lost Dask worker runs again on another one, unnoticed, up to three times; then its future fails with
    WorkerCrashed. Otherwise futures fail as those of a local pool do.

    Args:
        address: the scheduler, or workers that are started here.
        conditions: how cases run.
        torch: the version that workers must have; None for the one that most of them have.
        most: how many tasks to have submitted at once; None for what the workers take.
        opens: opens the pool of a Dask worker (`HostCharter.opens`).

    Raises:
        UsageError: a file that the conditions name cannot be sent.
    """

    def __init__(
        self,
        address: ClusterAddress,
        conditions: Conditions,
        *,
        torch: str | None = None,
        most: int | None = None,
        opens: Callable[..., Any] | None = None,
    ) -> None:
        self._most = most
        self._changes: deque[Change] = deque()
        self._first: Future[WorkerDescription] = Future()
        self._broken: FuzzcompileError | None = None
        self._numbers = itertools.count()
        self._campaign = uuid.uuid4().hex[:8]
        charter = HostCharter(self._campaign, PackedConditions.of(conditions), slots=0)
        if opens is not None:
            charter = HostCharter(self._campaign, charter.packed, slots=0, opens=opens)
        self._membership = Membership(
            address,
            charter,
            WorkerRequirements(torch, True if conditions.device.startswith("cuda") else None),
            any_device=conditions.device != "auto" or conditions.target is not None,
            say=self._record_change,
            fail=self._fail,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self._keeping = asyncio.run_coroutine_threadsafe(self._membership.keep(), self._loop)
        self._keeping.add_done_callback(self._handle_end)

    def wait_for_worker(self, timeout: float | None = None) -> WorkerDescription:
        """Wait for a first worker, and return where it runs.

        Args:
            timeout: seconds; by default one minute, and more while a worker starts its processes.

        Raises:
            EnvironmentUnfit: no scheduler answers, or no worker fits; the message says what the workers lack.
            UsageError: a plant, pass or backend of the user's own fails.
        """
        begun = time.monotonic()
        while True:
            try:
                return self._first.result(0.2)
            except TimeoutError:
                over = time.monotonic() - begun
                patient = over < _GATHERING or self._membership.is_opening or self._membership.connection is None
                if (timeout is None or over < timeout) and patient:
                    continue
                raise EnvironmentUnfit(self._explain_no_worker(over)) from None

    def schedule(
        self,
        fn: Callable[..., T],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        label: str | None = None,
        time_limit: float | None = None,
        spends: bool = False,
        counts: bool = True,
        on_left: Callable[[str, str], object] | None = None,
        not_on: Collection[str] = (),
    ) -> Future[T]:
        """Run ``fn(*args, **kwargs)`` on a Dask worker (`TaskPool.schedule`); on a lost cluster, its future fails."""
        future = ClusterFuture()
        if self._broken is not None:
            future.set_exception(self._make_failure())
            return cast(Future[T], future)
        name = label or str(getattr(fn, "__qualname__", fn))
        options = {"label": name, "time_limit": time_limit, "spends": spends, "counts": counts}
        try:
            call = pack((fn, tuple(args), dict(kwargs or {})))
        except Exception as error:  # pickling runs the arguments' own code, which may raise anything
            future.set_exception(error)
            return cast(Future[T], future)
        task = ClusterTask(
            ClusterCall(self._campaign, next(self._numbers), call, options), name, future, on_left, frozenset(not_on)
        )
        self._loop.call_soon_threadsafe(self._put, task)
        return cast(Future[T], future)

    @property
    def capacity(self) -> int:
        """The number of tasks to submit at once: a few more than the workers run now.

        It is 0 while there are no workers, and 1 once the cluster is lost: that task's future fails with the reason.
        """
        if self._broken is not None:
            return 1
        slots = self._membership.state.slots
        taken = slots + max(2, int(_SURPLUS * slots)) if slots else 0
        return taken if self._most is None else min(taken, self._most)

    def workers(self) -> list[WorkerState]:
        """Return the current state of each slot of the Dask workers."""
        states: list[WorkerState] = []
        for member in list(self._membership.dispatcher.members.values()):
            running: list[ClusterTask | None] = list(member.running.values())
            for task in running + [None] * (member.slots - len(running)):
                states.append(
                    WorkerState(
                        slot=len(states),
                        pid=None,
                        device=member.surroundings.device,
                        ready=True,
                        task=task.label if task is not None else None,
                        busy_since=task.since if task is not None else None,
                    )
                )
        return states

    def environment_of(self, future: Future[Any]) -> Mapping[str, object] | None:
        """Return the environment of the worker that ran a task which has ended."""
        return future.environment if isinstance(future, ClusterFuture) else None

    def environments(self) -> list[Mapping[str, object]]:
        """Return the environments in which tasks run now, one for each machine."""
        members = list(self._membership.dispatcher.members.values())
        return list({member.machine: member.surroundings.environment for member in members}.values())

    @property
    def state(self) -> ClusterState:
        """The cluster as it is now."""
        return self._membership.state

    def changes(self) -> list[Change]:
        """Return the changes of the cluster since the last call."""
        return [self._changes.popleft() for _ in range(len(self._changes))]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the campaign on the cluster; there is no waiting for tasks."""
        del wait, cancel_futures
        self.kill_workers()

    def kill_workers(self) -> None:
        """Stop now: waiting tasks are cancelled, running ones fail with WorkerStopped; workers end their processes."""
        if self._loop.is_closed():
            return
        self._broken = self._broken or EnvironmentUnfit("The cluster was left.")
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_ENDS_WITHIN)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- on the thread of the loop --------------------------------------------------------------------------------

    def _put(self, task: ClusterTask) -> None:
        if self._broken is not None:
            task.fail(self._make_failure())
        else:
            self._membership.dispatcher.put(task)

    async def _stop(self) -> None:
        self._membership.dispatcher.fail_all(WorkerStopped, cancel=True)
        await self._membership.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_REST_WITHIN)

    def _record_change(self, change: Change) -> None:
        self._changes.append(change)
        if isinstance(change, WorkerJoined) and not self._first.done() and self._membership.first is not None:
            self._first.set_result(self._membership.first)

    def _fail(self, error: FuzzcompileError) -> None:
        self._broken = error
        self._membership.dispatcher.fail_all(self._make_failure)
        if not self._first.done():
            self._first.set_exception(error)

    def _handle_end(self, keeping: Future[None]) -> None:
        """Fail all tasks after an internal error in the event loop, so that the campaign does not wait for ever."""
        if not keeping.cancelled() and (error := keeping.exception()) is not None:
            unexpected = EnvironmentUnfit(f"The cluster cannot be used: {type(error).__name__}: {error}.")
            unexpected.__cause__ = error
            self._loop.call_soon_threadsafe(self._fail, unexpected)

    def _make_failure(self) -> WorkerStartFailed:
        failure = WorkerStartFailed("the cluster is lost", str(self._broken), final=True)
        failure.__cause__ = self._broken
        return failure

    def _explain_no_worker(self, seconds: float) -> str:
        address = self._membership.address
        refused = [f"{worker}: {why}" for worker, why in sorted(self._membership.refused.items())]
        if refused:
            more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
            return f"No Dask worker of {address} fits this campaign: {'; '.join(refused[:3])}{more}."
        if self._membership.connection is None:
            return f"The Dask scheduler at {address} had not answered after {seconds:.0f} s. Give more budget."
        if self._membership.is_opening:
            return f"No Dask worker of {address} had started its processes after {seconds:.0f} s. Give more budget."
        return f"The scheduler at {address} has no workers: start some with `dask worker {address}`."
