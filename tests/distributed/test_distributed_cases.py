"""Case files that several processes run: how many they ask for, and the processes that stay between two cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from fuzzcompile.diagnosis.worker import rank_processes
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_sources
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.model.verdicts import AGREEING
from fuzzcompile.programs.casefiles.case_file import count_processes
from fuzzcompile.run.pool.worker_pool import WorkerPool

CASE = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

NPROC = 2


def wrong_in_the_second(graph, inputs):
    def call(*arguments):
        return [out + dist.get_rank() for out in graph(*arguments)]

    return call


def make():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())

    def program(x):
        return funcol.all_reduce(x.cos(), "sum", dist.group.WORLD)

    return program, (torch.randn(4, 3),)
"""
COUNTING = """
import torch
import torch.distributed as dist
from torch import nn

NPROC = 2
CALLS = [(torch.ones(4),), (torch.ones(5),)]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x.cos() * self.calls


def make():
    dist.init_process_group("gloo")
    return Counter(), (torch.ones(3),)
"""
SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

NPROC = 2
BACKWARD = True


def make():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)

    def program(a):
        b = torch.relu(a)
        return (a * 2.0).redistribute(mesh, [Shard(0)]), b, torch.tanh(b + b)

    return program, (distribute_tensor(torch.randn(3, 6), mesh, [Shard(1)]).requires_grad_(),)
"""
TAKEN = CASE.replace("make():", "make():\n    raise ValueError(dist)")

# Inductor 2.13 forgets, while it fuses on a CPU, that what a node reads is another version of its buffer once the
# collective at work on it is waited for (pytorch#185509, mended later).
FUSED = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh

NPROC = 2


def make():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(dist.get_rank())

    def program(x):
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(x, 1, mesh.get_group(1).group_name)
        summed = funcol.all_reduce(x, "sum", (mesh, 0))
        gathered = torch.ops._c10d_functional.wait_tensor(gathered)
        rolled = torch.roll(gathered, 1, 0)
        return rolled + summed, gathered + 0.5, rolled

    return program, (torch.randn(2, 3),)
"""


@pytest.fixture(scope="module")
def answers() -> Mapping[str, FileAnswer]:
    """What is said of each of these cases, which one worker judges one after the other."""
    sources = {
        "right.py": CASE,
        "wrong.py": CASE + "\nBACKEND = wrong_in_the_second\n",
        "raising.py": TAKEN,
        "counting.py": COUNTING,
        "sharded.py": SHARDED,
        "sharded_again.py": SHARDED.replace("torch.relu(a)", "a.cos()"),
    }
    judged = triage_sources(sources, Conditions("cpu", limits=Limits(seconds=200.0)))
    return {answer.path.name: answer for answer in judged}


def read_outputs(answer: FileAnswer) -> dict[str, dict[str, Any]]:
    assert answer.report is not None, answer.error
    return {output["name"]: dict(output) for output in answer.report["evidence"]["outputs"]}


def test_a_case_file_is_judged_by_as_many_processes_as_it_asks_for(answers):
    assert set(read_outputs(answers["right.py"])) == {"out0", "rank1.out0"}
    assert answers["right.py"].report["verdict"] in ("equal", "rounding")


def test_what_is_wrong_in_another_process_is_found(answers):
    report = answers["wrong.py"].report
    assert report is not None and report["verdict"] == "miscompile"
    wrong = {name for name, output in read_outputs(answers["wrong.py"]).items() if output["finding"] not in AGREEING}
    assert wrong == {"rank1.out0"}


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="a bug of torch 2.13")
def test_a_kernel_that_is_fused_before_the_wait_it_needs_is_named():
    (answer,) = triage_sources({"fused.py": FUSED}, Conditions("cpu", limits=Limits(seconds=200.0)))
    assert answer.report is not None and answer.report["verdict"] == "miscompile"
    culprit = answer.report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("scheduler", "fusion", True)


def test_a_case_that_cannot_be_made_is_refused_in_a_sentence(answers):
    assert answers["raising.py"].report is None
    assert "ValueError" in (answers["raising.py"].error or "")


def test_later_calls_go_on_from_what_earlier_ones_left(answers):
    report = answers["counting.py"].report
    assert report is not None and report["verdict"] in ("equal", "rounding")
    assert {"call2.out0", "rank1.call2.out0"} <= set(read_outputs(answers["counting.py"]))


@pytest.mark.parametrize("name", ["sharded.py", "sharded_again.py"])
def test_parts_of_tensors_are_judged_with_their_gradients_case_after_case(answers, name: str):
    """Of several outputs in parts, and with a mesh like that of the case before."""
    report = answers[name].report
    assert report is not None and report["verdict"] in ("equal", "rounding"), report["detail"]
    assert "rank1.gradient of input0" in read_outputs(answers[name])


@pytest.mark.parametrize(
    ("source", "count"),
    [
        (CASE, 2),
        (CASE.replace("NPROC = 2", "NPROC = 4  # as torchrun is told"), 4),
        (CASE.replace("NPROC = 2", "NPROC = 1"), None),
        (CASE.replace("NPROC = 2", "    NPROC = 2"), None),
        ("NPROC = 2\nimport torch\ntorch.compile(torch.relu)(torch.ones(2))\n", None),
    ],
)
def test_the_number_of_processes_stands_at_the_top_of_a_case_file(source: str, count: int | None):
    assert count_processes(source) == count


class FakePool:
    """So many workers, which are alive until they are killed."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.alive = capacity, True

    def kill_workers(self) -> None:
        self.alive = False


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    pools: list[Any] = []
    monkeypatch.setattr(rank_processes, "_kept", pools)
    monkeypatch.setattr(rank_processes, "_LEAVING_SECONDS", 0.1)
    yield pools


def open_fake(workers: int) -> WorkerPool:
    return FakePool(workers)  # type: ignore[return-value] # all that is used of one


def test_processes_stay_for_the_next_case_where_all_have_left_the_last(kept: list[Any]):
    pool = rank_processes._take_pool(1, open_fake)
    done = Future[None]()
    done.set_result(None)
    with rank_processes._keep_or_kill(pool) as ended:
        ended.append(done)
    assert kept == [pool] and rank_processes._take_pool(1, open_fake) is pool


def test_as_many_as_the_next_case_asks_for_are_started(kept: list[Any]):
    first = rank_processes._take_pool(1, open_fake)
    kept.append(first)
    assert rank_processes._take_pool(3, open_fake).capacity == 3
    assert not first.alive and not kept


@pytest.mark.parametrize("way", ["not reached", "raised", "still there"])
def test_processes_that_did_not_leave_a_case_well_are_ended(kept: list[Any], way: str):
    pool, future = rank_processes._take_pool(1, open_fake), Future[None]()
    if way == "raised":
        future.set_exception(RuntimeError("lost"))
    with rank_processes._keep_or_kill(pool) as ended:
        ended += [] if way == "not reached" else [future]
    assert not pool.alive and not kept
