"""What becomes of tasks whose Dask workers are lost or answer with errors, without any Dask."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("distributed", reason="needs the extra `cluster`")
import torch

from fuzzcompile.diagnosis.worker.minimize_task import MinimizeTask, can_resume
from fuzzcompile.fuzz.cluster.cluster_messages import make_portable
from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool, ClusterTask, ClusterWorker
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.run.pool.worker import RemoteError, WorkerCrashed, WorkerStartFailed, WorkerStopped

NOT_HERE = b"cno_such_module\nError\n."
"""The pickle of an exception whose module is not installed here."""


class Sent(asyncio.Future[bytes]):
    """An answer that comes when the test says so."""

    def release(self) -> None: ...


class Client:
    """Keeps what was sent where."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, Sent]] = []

    def submit(self, _: object, payload: bytes, *, workers: list[str], **__: Any) -> Sent:
        self.sent.append((workers[0], payload, Sent()))
        return self.sent[-1][2]


def member(address: str, slots: int = 1) -> ClusterWorker:
    return ClusterWorker(address, slots, WorkerDescription({"machine": address, "torch": "2.15.0"}, "cpu"))


def make_task(number: int = 0, *args: object) -> ClusterTask:
    return ClusterTask("c", number, (len, args, {}), {}, "judge")


def begin(kept: ClusterPool, number: int, address: str) -> None:
    kept._mark_begun((0.0, {"begun": number, "worker": address}))


def dispatched(
    members: list[ClusterWorker], tasks: list[ClusterTask], then: Callable[[ClusterPool, Client], Any]
) -> Client:
    """Send tasks to members, do something, and let what follows from it happen."""

    async def run() -> Client:
        kept, client = ClusterPool(ClusterAddress("tcp://s:1"), Conditions(device="cpu")), Client()
        kept._client = client
        for each in members:
            kept._known[each.address] = each
        for sent in tasks:
            kept._add_task(sent)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        then(kept, client)
        for _ in range(4):
            await asyncio.sleep(0)
        return client

    return asyncio.run(run())


def test_workers_that_are_lost_at_once_blame_a_task_once():
    members, task = [member(name) for name in "abcd"], make_task()

    def lose(kept: ClusterPool, _: Client) -> None:
        begin(kept, 0, "a")
        kept._lose("it is gone", *members[:3])

    client = dispatched(members, [task], lose)
    assert [where for where, _, _ in client.sent] == ["a", "d"]
    assert task.lost == ["a"] and task.running()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (pickle.dumps((None, RemoteError("torch.Broken", "its text"), None)), "torch.Broken: its text"),
        (NOT_HERE, "no_such_module"),
    ],
)
def test_an_error_that_the_driver_cannot_unpickle_is_told_and_its_slot_is_free_again(reply, said):
    first, second = make_task(1), make_task(2)
    client = dispatched([member("a")], [first, second], lambda _, client: client.sent[0][2].set_result(reply))
    assert said in str(first.exception(0))
    assert len(client.sent) == 2 and second.running()


def test_an_error_comes_with_its_cause():
    task = make_task()
    reply = pickle.dumps((None, ValueError("bad"), KeyError("why")))
    dispatched([member("a")], [task], lambda _, client: client.sent[0][2].set_result(reply))
    raised = task.exception(0)
    assert isinstance(raised, ValueError) and isinstance(raised.__cause__, KeyError)


def test_an_error_of_another_package_travels_as_its_kind_and_text():
    torchs = type("Broken", (Exception,), {"__module__": "torch.somewhere"})("its text")
    assert str(make_portable(torchs)) == "torch.somewhere.Broken: its text"
    assert isinstance(make_portable(torchs), RemoteError)
    assert isinstance(make_portable(EnvironmentUnfit("no disk")), EnvironmentUnfit)
    assert isinstance(make_portable(KeyError(torch.float32)), RemoteError)  # the driver could not unpickle it
    assert isinstance(make_portable(KeyError("torch is in the text")), KeyError)


def test_on_a_lost_cluster_what_waits_fails_like_what_runs():
    tasks = [make_task(number) for number in range(3)]
    tasks[2].cancel()
    dispatched([member("a")], tasks, lambda kept, _: kept._settle_all(lambda: WorkerStartFailed("lost")))
    done, _ = concurrent.futures.wait(tasks, 0)
    assert len(done) == 3 and tasks[2].cancelled()
    assert [type(task.exception(0)) for task in tasks[:2]] == [WorkerStartFailed] * 2


def test_when_the_pool_is_stopped_what_waits_is_cancelled_and_reported():
    tasks = [make_task(number) for number in range(2)]
    dispatched([member("a")], tasks, lambda kept, _: kept._settle_all(WorkerStopped, cancel=True))
    done, _ = concurrent.futures.wait(tasks, 0)
    assert len(done) == 2 and tasks[1].cancelled()
    assert isinstance(tasks[0].exception(0), WorkerStopped)


def test_a_task_that_was_lost_with_three_workers_fails():
    task = make_task()

    def lose(kept: ClusterPool, _: Client) -> None:
        for name in "abc":
            begin(kept, 0, name)
            kept._lose("it is gone", kept._known[name])

    dispatched([member(name) for name in "abc"], [task], lose)
    failed = task.exception(0)
    assert task.environment is not None and task.environment["machine"] == failed.output[-1]
    assert isinstance(failed, WorkerCrashed) and "a, b, c" in failed.output


def test_a_task_that_never_began_is_not_to_blame_unless_it_is_sent_again_and_again():
    task, names = make_task(), [str(number) for number in range(13)]
    sent: list[bool] = []

    def lose(kept: ClusterPool, _: Client) -> None:
        for name in names:
            sent.append(task.done())
            if name in kept._known:
                kept._lose("it is gone", kept._known[name])

    dispatched([member(name) for name in names], [task], lose)
    assert task.lost == [] and not any(sent[:12]) and sent[12]
    assert isinstance(task.exception(0), WorkerCrashed)


def test_a_minimization_goes_on_elsewhere_without_blame_for_its_last_question():
    task = make_task(7, MinimizeTask("source", cast(Any, {}), None, 1.0))
    heard: dict[str, str] = {}
    goes_on: list[dict[str, str]] = []
    task.on_left = heard.__setitem__
    members = [member(name) for name in "abc"]
    left = {"state": '{"tally": {}, "fatal": []}', "asking": "compile 1", "eager": ""}

    def lose(kept: ClusterPool, _: Client) -> None:
        members[0].store_left({7: left, 8: {"state": "of another"}})
        for name in "abc":
            goes_on.append(cast(Any, task.call[1][0]).left)
            begin(kept, 7, name)
            kept._lose("it is gone", kept._known[name])

    dispatched(members, [task], lose)
    assert goes_on == [{}, {"state": left["state"]}, {"state": left["state"]}]
    crash = task.exception(0)
    assert isinstance(crash, WorkerCrashed) and crash.left == {"state": left["state"]} and can_resume(crash.left)
    assert heard == left
