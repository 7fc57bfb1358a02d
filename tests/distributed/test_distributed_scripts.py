"""Scripts with torch.distributed as users write them: in one process, and in two that run together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fuzzcompile.diagnosis.worker.file_triage import triage_files
from fuzzcompile.model.conditions import Conditions, Limits, Question

FOLDER = Path(__file__).parent
# Judged in every run of the tests; the others take a quarter of an hour.
QUICK = (("tp_mlp", None), ("funcol", 2))
SCRIPTS = sorted(path.stem for path in (FOLDER / "scripts").glob("*.py"))
RIGHT = ("equal", "rounding")
Judge = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Plant:
    """A fault, the script that shows it in two processes, and the stage and the name of what is accused.

    ``stage`` is None where the fault is found and not named.
    """

    script: str
    stage: str | None
    names: str = ""


PLANTS = {
    "all_gather_backward": Plant("sequence", "lowering", "all_gather_into_tensor"),
    "all_reduce_nothing": Plant("tp_mlp", "lowering", "all_reduce_"),
    "bucket_detached": Plant("ddp", "dynamo", "split of a graph for DDP"),
    "bucket_order": Plant("buckets", "post_grad", "bucket_all_gathers"),
    "comm_raised": Plant("reread", "scheduler", "order of collectives"),
    "exchange_kept": Plant("exchange", "lowering", "all_to_all_single"),
    "maximum_in_rank_1": Plant("funcol", None),
    "gathered_reversed": Plant("sequence", "functionalization", "redistribute"),
    "reduction_summed": Plant("in_place", "dynamo"),
    "bucket_swap": Plant("buckets", "post_grad", "bucket_all_reduce"),
    "ddp_split": Plant("ddp_buckets", "dynamo", "split of a graph for DDP"),
    "from_local": Plant("tp_mlp", None),
    "open_sizes": Plant("last_batch", "lowering", "aten.mul"),
    # The walk along the calls of eager mode, which names what dynamo traces, is a matter of one process.
    "managed_detached": Plant("fsdp2", "dynamo"),
    "partial_kept": Plant("tp_mlp", "functionalization", "redistribute"),
    "product_whole": Plant("tp_mlp", "aten", "aten.mm"),
    "reduced_halved": Plant("sequence", "aten", "redistribute"),
    "rank_1": Plant("two_d", "lowering", "relu"),
    "reduce_scatter_op": Plant("funcol", "lowering", "reduce_scatter_tensor"),
    "reinplaced": Plant("reread", "post_grad", "reinplace_inplaceable_ops"),
    # Operators are proved innocent or guilty by breaks of the graph; what is saved has no operator of its own.
    "saved_swapped": Plant("fsdp2_layers", "functionalization"),
    "to_local_partial": Plant("tp_attention", "functionalization", "to_local"),
    "wait_dropped": Plant("funcol", "lowering", "wait_tensor"),
    "wait_sunk": Plant("reread", "scheduler", "order of collectives"),
}


@pytest.fixture(scope="module")
def judge() -> Judge:
    """Judge a script of this folder, perhaps with a fault planted: its report."""

    def report(script: str, nproc: int | None = None, plant: str | None = None, folder: str = "scripts") -> Any:
        plants = () if plant is None else (FOLDER / "plants" / f"{plant}.py",)
        conditions = Conditions("cpu", limits=Limits(seconds=300.0), plants=plants)
        (answer,) = triage_files([FOLDER / folder / f"{script}.py"], conditions, Question(nproc=nproc))
        assert answer.report is not None, answer.error
        return answer.report

    return report


@pytest.mark.parametrize(("script", "nproc"), QUICK)
def test_a_right_script_is_judged_right(judge: Judge, script: str, nproc: int | None) -> None:
    _check_right(judge(script, nproc), nproc)


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [None, 2])
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_is_judged_right(judge: Judge, script: str, nproc: int | None) -> None:
    if (script, nproc) in QUICK:
        pytest.skip("judged in every run")
    _check_right(judge(script, nproc), nproc)


def _check_right(report: Mapping[str, Any], nproc: int | None) -> None:
    assert report["verdict"] in RIGHT, report["detail"]
    assert not report["is_bug"]
    assert report["confidence"] == "high", report["evidence"]["notes"]
    ranks = {output["name"].partition(".")[0] for output in report["evidence"]["outputs"]}
    assert ("rank1" in ranks) is (nproc == 2)


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found_and_named(judge: Judge, plant: str) -> None:
    planted = PLANTS[plant]
    report = judge(planted.script, 2, plant)
    assert report["is_bug"], report["verdict"]
    culprit = report["culprit"]
    if planted.stage is not None:
        assert culprit is not None
        assert culprit["stage"] == planted.stage
        assert planted.names in (culprit["rewrite"] or culprit["pass"] or "")


@pytest.mark.slow
def test_gradients_that_compiled_autograd_does_not_reduce_under_fsdp2_are_a_bug_of_its(judge: Judge) -> None:
    report = judge("fsdp2_compiled_autograd", 2, folder="wrong")
    assert report["is_bug"], report["verdict"]
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == ("dynamo", "compiled_autograd")
