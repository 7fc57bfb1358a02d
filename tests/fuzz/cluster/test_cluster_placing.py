"""Which Dask worker gets which task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the extra `cluster`")

from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool, ClusterTask, ClusterWorker
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.judge_task import WorkerDescription


class Sent(asyncio.Future[bytes]):
    """An answer that never comes."""

    def release(self) -> None: ...


class Client:
    """Keeps what was sent where."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def submit(self, *_: Any, key: str, workers: list[str], **__: Any) -> Sent:
        self.sent.append((key.partition("-")[0], workers[0]))
        return Sent()


def member(address: str, machine: str, slots: int = 1) -> ClusterWorker:
    """An admitted worker; with no ``slots``, it has one that is taken."""
    busy = {} if slots else {-1: make_task("busy")}
    here = WorkerDescription({"machine": machine, "torch": "2.15.0"}, "cpu")
    return ClusterWorker(address, slots or 1, here, running=busy)


def make_task(name: str, *not_on: str) -> ClusterTask:
    return ClusterTask("c", hash(name) % 999, (len, (), {}), {}, name, None, frozenset(not_on))


def placed(members: list[ClusterWorker], tasks: list[ClusterTask], *later: ClusterWorker) -> list[tuple[str, str]]:
    async def place() -> list[tuple[str, str]]:
        pool, client = ClusterPool(ClusterAddress("tcp://s:1"), Conditions(device="cpu")), Client()
        pool._client = client
        for each in members:
            pool._known[each.address] = each
        for each in tasks:
            pool._add_task(each)
        for each in later:
            pool._known[each.address] = each
            pool._place()
        await asyncio.sleep(0)
        return client.sent

    return asyncio.run(place())


def test_tasks_go_to_the_worker_with_the_most_free_slots_in_their_order():
    assert placed([member("a", "m", 1), member("b", "m", 2)], [make_task(name) for name in "xyz"]) == [
        ("x", "b"), ("y", "a"), ("z", "b"),
    ]  # fmt: skip


def test_what_a_machine_has_tried_is_judged_on_another_and_holds_nothing_up():
    assert placed([member("a", "here"), member("b", "there")], [make_task("x", "here"), make_task("y")]) == [
        ("x", "b"),
        ("y", "a"),
    ]
    waits = placed([member("a", "here"), member("b", "there", 0)], [make_task("x", "here"), make_task("y")])
    assert waits == [("y", "a")], "it waits for the other machine"


def test_where_there_is_no_other_machine_it_is_judged_all_the_same():
    assert placed([member("a", "here")], [make_task("x", "here")]) == [("x", "a")]
    assert placed([member("a", "here", 0)], [make_task("x", "here")], member("b", "there")) == [("x", "b")]
