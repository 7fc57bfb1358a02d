"""A Dask cluster as a pool of workers: tasks of campaigns run on the Dask workers that fit.

Everything of Dask happens on a thread of its own, in one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from fuzzcompile.fuzz.cluster.cluster_messages import (
    ClusterCall,
    HostCharter,
    PackedConditions,
    WorkerRequirements,
)
from fuzzcompile.fuzz.cluster.cluster_state import Change, ClusterAddress, ClusterState
from fuzzcompile.fuzz.cluster.membership import ClusterTask, Membership
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.run.pool.worker import WorkerStopped
from fuzzcompile.run.pool.worker_pool import Call, TaskOptions, TaskPool, WorkerState

_GATHERING = 60.0  # seconds for a first worker that fits
_ENDS_WITHIN = 40.0
_REST_WITHIN = 3.0
# Beside one task a slot, so many wait here for the slot that is free next: drawing a case takes the engine a while.
_SURPLUS = 0.25


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
        opens: Callable[..., Any] | None = None,
    ) -> None:
        self._most = most
        self._numbers = itertools.count()
        self._charter = HostCharter(f"fuzzcompile-{uuid.uuid4().hex[:8]}", PackedConditions.of(conditions), slots=0)
        self._membership = Membership(
            address,
            self._charter if opens is None else replace(self._charter, opens=opens),
            WorkerRequirements(torch, True if conditions.device.startswith("cuda") else None),
            any_device=conditions.device != "auto" or conditions.target is not None,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self._keeping = asyncio.run_coroutine_threadsafe(self._membership.keep(), self._loop)

    def wait_for_worker(self, timeout: float | None = None) -> WorkerDescription:
        """Wait for a first worker, a minute by default and more while one starts; return where it runs."""
        begun, members = time.monotonic(), self._membership
        while True:
            try:
                return members.first.result(0.2)
            except TimeoutError:
                over = time.monotonic() - begun
                patient = over < _GATHERING or members.opening or members.connection is None
                if not patient or (timeout is not None and over >= timeout):
                    raise EnvironmentUnfit(self._explain_no_worker(over)) from None

    def put(self, call: Call, label: str, options: TaskOptions) -> Future[Any]:
        """Have a Dask worker run a call (`TaskPool.put`); on a lost cluster, its future fails."""
        on_left, not_on = options.pop("on_left", None), frozenset(options.pop("not_on", ()))
        sent = ClusterCall(self._charter.campaign, next(self._numbers), (*call, {**options, "label": label}))
        task = ClusterTask(sent, label, on_left, not_on)
        try:
            self._loop.call_soon_threadsafe(self._membership.put, task)
        except RuntimeError:  # the cluster was left
            task.set_exception(self._membership.make_failure())
        return task

    @property
    def capacity(self) -> int:
        """The number of tasks to submit at once: a few more than the workers run now.

        It is 0 while there are no workers, and 1 once the cluster is lost: that task's future fails with the reason.
        """
        if self._membership.broken is not None:
            return 1
        slots = self._membership.state.slots
        taken = slots + max(2, int(_SURPLUS * slots)) if slots else 0
        return taken if self._most is None else min(taken, self._most)

    def workers(self) -> list[WorkerState]:
        """Return the current state of each slot of the Dask workers."""
        states: list[WorkerState] = []
        for member in list(self._membership.members.values()):
            running: list[tuple[str | None, float | None]] = [(x.label, x.since) for x in list(member.running.values())]
            for task in running + [(None, None)] * (member.slots - len(running)):
                states.append(WorkerState(len(states), None, member.surroundings.device, True, *task))
        return states

    def environment_of(self, future: Future[Any]) -> Mapping[str, object] | None:
        """Return the environment of the worker that ran a task which has ended."""
        return future.environment if isinstance(future, ClusterTask) else None

    def environments(self) -> list[Mapping[str, object]]:
        """Return the environments in which tasks run now, one for each machine."""
        members = list(self._membership.members.values())
        return list({member.machine: member.surroundings.environment for member in members}.values())

    @property
    def state(self) -> ClusterState:
        """The cluster as it is now."""
        return self._membership.state

    def changes(self) -> list[Change]:
        """Return the changes of the cluster since the last call."""
        changes = self._membership.changes
        return [changes.popleft() for _ in range(len(changes))]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the campaign on the cluster; there is no waiting for tasks."""
        del wait, cancel_futures
        self.kill_workers()

    def kill_workers(self) -> None:
        """Stop now: waiting tasks are cancelled, running ones fail with WorkerStopped; workers end their processes."""
        if self._loop.is_closed():
            return
        self._membership.broken = self._membership.broken or EnvironmentUnfit("The cluster was left.")
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_ENDS_WITHIN)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._membership.fail_all(WorkerStopped, cancel=True)
        await self._membership.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_REST_WITHIN)

    def _explain_no_worker(self, seconds: float) -> str:
        members = self._membership
        address, refused = members.address, [f"{worker}: {why}" for worker, why in sorted(members.refused.items())]
        if refused:
            more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
            return f"No Dask worker of {address} fits this campaign: {'; '.join(refused[:3])}{more}."
        if members.connection is None:
            return f"The Dask scheduler at {address} had not answered after {seconds:.0f} s. Give more budget."
        if members.opening:
            return f"No Dask worker of {address} had started its processes after {seconds:.0f} s. Give more budget."
        return f"The scheduler at {address} has no workers: start some with `dask worker {address}`."
