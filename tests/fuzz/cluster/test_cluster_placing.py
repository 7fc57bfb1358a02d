"""Which Dask worker gets which task."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from fuzzcompile.fuzz.cluster.cluster_messages import ClusterCall, HostCharter, PackedConditions, WorkerRequirements
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.fuzz.cluster.membership import ClusterMember, ClusterTask, Connection, Membership
from fuzzcompile.model.conditions import Conditions
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
    return ClusterMember(address, slots, WorkerDescription({"machine": machine, "torch": "2.15.0"}, "cpu"))


def make_task(name: str, *not_on: str) -> ClusterTask:
    return ClusterTask(ClusterCall("c", hash(name) % 999, (len, (), {}, {})), name, None, frozenset(not_on))


def placed(members: list[ClusterMember], tasks: list[ClusterTask], *later: ClusterMember) -> list[tuple[str, str]]:
    async def place() -> list[tuple[str, str]]:
        charter = HostCharter("c", PackedConditions(Conditions(device="cpu")), slots=1)
        kept = Membership(ClusterAddress(url="tcp://s:1"), charter, WorkerRequirements(), any_device=True)
        client = Client()
        for each in members:
            kept.welcome(each)
        kept.connection = Connection(client, "tcp://s:1", contextlib.AsyncExitStack())  # type: ignore[arg-type]
        for each in tasks:
            kept.put(each)
        for each in later:
            kept.welcome(each)
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
