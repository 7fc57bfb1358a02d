"""Hosts, rosters and connections where something is slow, deaf or fails, without any Dask worker."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the extra `cluster`")

import distributed

from fuzzcompile.fuzz.cluster import cluster_pool, dask_client, dask_host
from fuzzcompile.fuzz.cluster.cluster_messages import HostCharter, Unhosted
from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool, ClusterTask, ClusterWorker
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.judge_task import NamedFunction, WorkerDescription
from fuzzcompile.run.pool.worker import WorkerStartFailed, WorkerStopped

HERE = WorkerDescription({"torch": "2.15.0", "machine": "m"}, "cpu")


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


OPENING = HostCharter("campaign", Conditions(device="cpu"), {}, NamedFunction(f"{__name__}:open_slowly"), slots=1)


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
        first = worker.plugins["campaign"]
        running = asyncio.create_task(asyncio.to_thread(first.run, 1, len, (), {}, {}))
        while not first._pool.tasks:
            await asyncio.sleep(0.01)
        await dask_host.open_host(OPENING, worker)
        with pytest.raises(Unhosted):
            await running
        second = worker.plugins["campaign"]
        assert not first.is_open and second.is_open
        await worker.plugins.popitem()[1].teardown(worker)

    asyncio.run(admit_twice())


def a_pool() -> ClusterPool:
    return ClusterPool(ClusterAddress("tcp://s:1"), Conditions(device="cpu"))


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

    async def connect(*_: Any) -> tuple[Deaf, str]:
        return Deaf(), "tcp://s:1"

    async def keep() -> list[bool]:
        kept = a_pool()
        serving = asyncio.create_task(kept._serve())
        seen = []
        for opening in (True, False):  # it is asked, and its time to answer is over: however busy the machine is
            async with asyncio.timeout(60):
                while any(each.opening for each in kept._known.values()) is not opening:
                    await asyncio.sleep(0.01)
            seen.append(opening)
        await asyncio.sleep(0.1)
        seen.append(any(each.opening for each in kept._known.values()))
        kept._left.set()
        await serving
        return seen

    monkeypatch.setattr(cluster_pool, "connect", connect)
    for name, seconds in (("_TICK", 0.01), ("_ASKING", 0.2), ("_ANSWERS_WITHIN", 0.1)):
        monkeypatch.setattr(cluster_pool, name, seconds)
    assert asyncio.run(keep()) == [True, False, False]


@pytest.mark.parametrize(
    ("error", "kinds", "why"),
    [
        (Unhosted(), ["worker_lost"], "serves the campaign no longer"),
        (WorkerStartFailed("no processes"), ["worker_lost", "worker_refused"], "no processes"),
    ],
)
def test_a_worker_that_cannot_run_a_task_is_told_as_lost_with_what_it_ran(error, kinds, why):
    async def answer() -> None:
        kept, task = a_pool(), ClusterTask("c", 0, (len, (), {}), {}, "judge")
        sent: Any = asyncio.Future()
        sent.release = lambda: None
        client = SimpleNamespace(submit=lambda *_, **__: sent)
        kept._client = client
        worker = kept._known["tcp://a:1"] = ClusterWorker("tcp://a:1")
        kept._welcome(worker, 1, HERE)
        assert [change.event for change in kept.changes()] == ["worker_joined"] and kept.state.slots == 1
        kept._add_task(task)
        sent.set_result(pickle.dumps((None, error, None)))
        for _ in range(3):
            await asyncio.sleep(0)
        told = kept.changes()
        assert [change.event for change in told] == kinds
        lost = told[0].fields
        assert lost["tasks"] == 1 and why in str(lost["why"]) and kept.state.slots == 0

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

    async def connect() -> None:
        async with contextlib.AsyncExitStack() as ending:
            await dask_client.connect(ClusterAddress("local:2", 2), ending, 8.0)

    monkeypatch.setattr(distributed, "LocalCluster", lambda **_: Fake("cluster"))
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: Fake("client"))
    monkeypatch.setattr(dask_client.signal, "pthread_sigmask", lambda *_: None)
    with pytest.raises(EnvironmentUnfit, match="it fails"):
        asyncio.run(connect())
    assert closed == (["cluster"] if fails == "cluster" else ["client", "cluster"])
