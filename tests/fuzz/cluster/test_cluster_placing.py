"""Which Dask worker gets which task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fuzzcompile.fuzz.cluster.cluster_messages import ClusterCall
from fuzzcompile.fuzz.cluster.dispatcher import ClusterFuture, ClusterMember, ClusterTask, Dispatcher
from fuzzcompile.model.judge_task import WorkerDescription

pytest.importorskip("distributed", reason="needs the extra `cluster`")


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


def member(address: str, machine: str, slots: int = 1) -> ClusterMember:
    return ClusterMember(address, slots, WorkerDescription({"machine": machine}, "cpu"))


def make_task(name: str, *not_on: str) -> ClusterTask:
    return ClusterTask(ClusterCall("c", hash(name) % 999, b"", {}), name, ClusterFuture(), None, frozenset(not_on))


def placed(members: list[ClusterMember], tasks: list[ClusterTask], *later: ClusterMember) -> list[tuple[str, str]]:
    async def place() -> list[tuple[str, str]]:
        dispatcher, client = Dispatcher(lambda *_: None), Client()
        for each in tasks:
            dispatcher.put(each)
        for each in members:
            dispatcher.members[each.address] = each
        dispatcher.connect(client)  # type: ignore[arg-type]
        for each in later:
            dispatcher.add(each)
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
