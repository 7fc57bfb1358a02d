"""Programs triaged for a device that is not there: what is found, what is clean, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.judge_task import JudgeTask

pytest.importorskip("triton", reason="kernels are looked at with Triton alone")
TOLD = Path(__file__).parent / "told"
KNOWN = Path(__file__).parents[2] / "known_issues" / "cuda"
FAKE = "real code, fake device"
TRAINED = ("trained_attention", "autocast_around")

Judge = Callable[..., ReportJson]


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    with open_pool(Conditions(device="cpu", target="cuda:sm_90"), 1) as pool:
        yield pool


@pytest.fixture(scope="module")
def judge(workers: Executor) -> Judge:
    return lambda path, **question: workers.submit(judge_file, JudgeTask(path=str(path), **question)).result().report


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("trained_attention", marks=pytest.mark.slow),
        pytest.param("two_attentions", marks=pytest.mark.slow),
        "dynamic_sizes",
        "number_as_input",
        "sizes_from_data",
        "whole_dynamic",
        "own_kernel",
        pytest.param("frozen", marks=pytest.mark.slow),
        "says_cuda_and_autocast",
        "autocast_around",
        "script_for_cuda",
    ],
)
def test_a_clean_program_is_clean_and_its_kernels_ran(judge, name):
    report = judge(TOLD / f"{name}.py")
    assert report["verdict"] in ("equal", "rounding")
    assert (report["device"], report["target"]["device"]) == ("cpu", "cuda:sm_90")
    assert report["target"]["confirmed_on_device"] is False
    stages = report["target"]["stages"]
    assert stages["kernels"] == "interpreted"
    assert stages["joint_graph"] == stages["post_grad"] == stages["codegen"] == FAKE
    assert stages["partition"] == (FAKE if name in TRAINED else "nothing to cut")
    assert stages["freezing"] == (FAKE if name == "frozen" else "off")
    assert stages["cudagraphs"].startswith("not looked at")


def test_a_screen_looks_at_graphs_alone_and_says_so(judge):
    report = judge(TOLD / "trained_attention.py", screen=True)
    assert report["verdict"] in ("equal", "rounding") and not report["cost"]["compiles"]
    assert report["target"]["stages"]["kernels"] == report["target"]["stages"]["codegen"] == "not looked at: screened"


def test_a_kernel_that_reads_what_it_overwrites_is_named(judge):
    report = judge(TOLD / "races.py")
    assert (report["verdict"], report["confidence"]) == ("miscompile", "high")
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("scheduler", "fusion", True)
    assert "@triton.jit" in str(culprit)


def test_a_public_issue_of_cuda_alone_is_found_by_its_kernel(judge):
    report = judge(KNOWN / "issue_189895.py")
    assert report["verdict"] == "miscompile"
    assert (report["culprit"]["stage"], report["culprit"]["necessary"]) == ("codegen", True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nested_input", r"an input is a NestedTensor\.$"),
        ("lacks_half", r"eager has to run on the CPU, which lacks a kernel for it \(.*not implemented for 'Half'"),
        ("packaged", "CudaKernelParamCache not populated for triton_"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_a_sentence(judge, name, why):
    with pytest.raises(FuzzcompileError, match=f"could not be looked at for cuda:sm_90: {why}"):
        judge(TOLD / f"{name}.py")
