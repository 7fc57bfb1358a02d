"""Hosts, rosters and connections where something is slow, deaf or fails, without any Dask worker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pickle
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import distributed
import pytest

from fuzzcompile.fuzz.cluster import dask_host, membership
from fuzzcompile.fuzz.cluster.cluster_messages import (
    ClusterCall,
    HostCharter,
    PackedConditions,
    Unhosted,
    WorkerRequirements,
)
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress, WorkerJoined, WorkerLost, WorkerRefused
from fuzzcompile.fuzz.cluster.membership import ClusterMember, ClusterTask, Connection, Membership
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.judge_task import NamedFunction, WorkerDescription
from fuzzcompile.run.pool.worker import WorkerStartFailed, WorkerStopped

pytest.importorskip("distributed", reason="needs the extra `cluster`")


HERE = WorkerDescription({"torch": "2.15.0", "machine": "m"}, "cpu")
CHARTER = HostCharter("campaign", PackedConditions(Conditions(device="cpu")), slots=1)


class Pool:
    """Runs nothing, and lets what runs fail when it is stopped."""

    def __init__(self) -> None:
        self.tasks: list[Future[Any]] = []

    def schedule(self, *_: Any, **__: Any) -> Future[Any]:
        self.tasks.append(Future())
        return self.tasks[-1]

    def kill_workers(self) -> None:
        for task in self.tasks:
            task.set_exception(WorkerStopped())


clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)


def open_slowly(charter: Any, stack: Any) -> Any:
    clock.now += 100.0
    return Pool(), HERE


OPENING = dataclasses.replace(CHARTER, opens=NamedFunction(f"{__name__}:open_slowly"))


def test_a_host_that_takes_long_to_open_does_not_close_itself(monkeypatch):
    monkeypatch.setattr(dask_host, "time", clock)
    slow = dask_host.CampaignHost(OPENING)
    slow.open()
    time.sleep(1.2)
    assert slow.is_open
    slow.close()


def test_a_deaf_worker_that_is_admitted_again_gets_a_host_that_runs_nothing():
    class Worker:
        address, plugins = "tcp://a:1", {}

        async def plugin_add(self, plugin: Any, name: str) -> None:
            if name in self.plugins:
                await self.plugins[name].teardown(self)
            self.plugins[name] = plugin

    async def admit_twice() -> None:
        worker: Any = Worker()
        await dask_host.open_host(OPENING, worker)
        first = dask_host.find_host("campaign", worker)
        assert first is not None
        running = asyncio.create_task(asyncio.to_thread(first.run, 1, ClusterCall("c", 1, (len, (), {}, {})).packed))
        while not first._pool.tasks:
            await asyncio.sleep(0.01)
        await dask_host.open_host(OPENING, worker)
        with pytest.raises(Unhosted):
            await running
        second = dask_host.find_host("campaign", worker)
        assert not first.is_open and second is not None and second is not first
        await worker.plugins.popitem()[1].teardown(worker)

    asyncio.run(admit_twice())


def a_roster() -> Membership:
    return Membership(ClusterAddress(url="tcp://s:1"), CHARTER, WorkerRequirements(), any_device=True)


def test_a_worker_that_is_listed_and_never_answers_is_waited_for_once(monkeypatch):
    class Deaf:
        status, dashboard_link = "running", ""

        async def nthreads(self) -> dict[str, int]:
            return {"tcp://a:1": 1}

        async def run(self, *_: Any, **__: Any) -> None:
            await asyncio.sleep(1000)

        async def close(self) -> None: ...

        def submit(self, *_: Any, **__: Any) -> None: ...

        def subscribe_topic(self, *_: Any) -> None: ...

    async def connect(*_: Any) -> Connection:
        return Connection(Deaf(), "tcp://s:1", contextlib.AsyncExitStack())  # type: ignore[arg-type]

    async def keep() -> list[bool]:
        kept = a_roster()
        keeping = asyncio.create_task(kept.keep())
        seen = []
        for opening in (True, False):  # it is asked, and its time to answer is over: however busy the machine is
            async with asyncio.timeout(60):
                while bool(kept.opening) is not opening:
                    await asyncio.sleep(0.01)
            seen.append(opening)
        await asyncio.sleep(0.1)
        seen.append(bool(kept.opening))
        await kept.close()
        assert keeping.cancelled()
        return seen

    monkeypatch.setattr(Connection, "open", connect)
    for name, seconds in (("_TICK", 0.01), ("_ASKING", 0.2), ("ANSWERS_WITHIN", 0.1)):
        monkeypatch.setattr(membership, name, seconds)
    assert asyncio.run(keep()) == [True, False, False]


@pytest.mark.parametrize(
    ("error", "kinds", "why"),
    [
        (Unhosted(), [WorkerLost], "serves the campaign no longer"),
        (WorkerStartFailed("no processes"), [WorkerLost, WorkerRefused], "no processes"),
    ],
)
def test_a_worker_that_cannot_run_a_task_is_told_as_lost_with_what_it_ran(error, kinds, why):
    async def answer() -> None:
        kept, task = a_roster(), ClusterTask(ClusterCall("c", 0, (len, (), {}, {})), "judge")
        sent: Any = asyncio.Future()
        sent.release = lambda: None
        client = SimpleNamespace(submit=lambda *_, **__: sent)
        kept.connection = Connection(client, "tcp://s:1", contextlib.AsyncExitStack())  # type: ignore[arg-type]
        kept.welcome(ClusterMember("tcp://a:1", 1, HERE))
        assert isinstance(kept.changes.pop(), WorkerJoined) and kept.state.slots == 1
        kept.put(task)
        sent.set_result(pickle.dumps((None, error, None)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert [type(change) for change in kept.changes] == kinds
        lost = kept.changes[0]
        assert isinstance(lost, WorkerLost) and lost.tasks == 1 and why in lost.why and kept.state.slots == 0

    asyncio.run(answer())


@pytest.mark.parametrize("fails", ["cluster", "client"])
def test_what_was_started_for_a_connection_that_fails_is_closed(monkeypatch, fails):
    closed: list[str] = []

    class Fake:
        scheduler_address = "tcp://s:1"

        def __init__(self, name: str) -> None:
            self.name = name

        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            if self.name == fails:
                raise OSError("it fails")

        async def close(self, fast: bool = False) -> None:
            closed.append(self.name)

        _close = close

    monkeypatch.setattr(distributed, "LocalCluster", lambda **_: Fake("cluster"))
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: Fake("client"))
    monkeypatch.setattr(membership.signal, "pthread_sigmask", lambda *_: None)
    with pytest.raises(EnvironmentUnfit, match="it fails"):
        asyncio.run(Connection.open(ClusterAddress(local=2), 8.0))
    assert closed == (["cluster"] if fails == "cluster" else ["client", "cluster"])
