"""Faults planted in what Inductor does for CUDA alone are found, named and proved; without them nothing is.

Triage runs in one worker for all tests: a target is assumed for the life of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import ReportJson

pytest.importorskip("triton", reason="kernels are looked at with Triton alone")
target_plants = pytest.importorskip("target_plants")
PLANTS = target_plants.PLANTS

Judge = Callable[..., ReportJson]


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    with open_pool(Conditions(device="cpu", target="cuda:sm_90"), 1) as pool:
        yield pool


@pytest.fixture
def judge(workers: Executor, tmp_path: Path) -> Judge:
    """Triage a program, with a plant or without."""

    def judged(program: str, plant: str | None = None) -> ReportJson:
        path = tmp_path / "case.py"
        path.write_text(program)
        return workers.submit(target_plants.judge, str(path), plant).result()

    return judged


def named(*, slow: bool) -> list[object]:
    marks = [pytest.mark.slow] if slow else []
    return [pytest.param(name, marks=marks) for name, plant in PLANTS.items() if plant.slow == slow]


@pytest.mark.parametrize("name", [*named(slow=False), *named(slow=True)])
def test_a_planted_fault_is_found_named_and_proved(judge, name):
    plant = PLANTS[name]
    report = judge(plant.program, name)
    assert report["is_bug"], report["verdict"]
    culprit = report["culprit"]
    assert culprit["stage"] == plant.stage
    assert plant.names in (culprit["rewrite"], culprit["family"])
    assert culprit["source"] == plant.source
    assert culprit["line"]
    assert culprit["necessary"] is True
    assert report["confidence"] == "high"
    assert report["target"]["confirmed_on_device"] is False
    says_nothing_of_cpp(report)


def says_nothing_of_cpp(report: ReportJson) -> None:
    toggles = [ablation["toggle"] for ablation in report["ablations"]]
    spoken = " ".join([*toggles, str(report["workaround"]), str(report["culprit"]), *report["evidence"]["notes"]])
    assert "cpp" not in spoken and "C++" not in spoken and "simdlen" not in spoken


def programs(dtype: str, *, slow: bool) -> list[str]:
    """The programs of the plants with all their random inputs of one dtype."""
    chosen = {plant.program for plant in PLANTS.values() if plant.slow == slow}
    written = [program.replace(f"torch.{own}", f"torch.{dtype}") for program in chosen for own in target_plants.DTYPES]
    return sorted({program for program in written if f"torch.{dtype}" in program})


@pytest.mark.parametrize(
    ("dtype", "slow"),
    [
        ("bfloat16", False),
        *(pytest.param(dtype, False, marks=pytest.mark.slow) for dtype in ("float32", "float16")),
        *(pytest.param(dtype, True, marks=pytest.mark.slow) for dtype in ("float32", "float16", "bfloat16")),
    ],
)
def test_without_a_plant_nothing_is_found(judge, dtype, slow):
    for program in programs(dtype, slow=slow):
        report = judge(program)
        assert not report["is_bug"], (program, report["verdict"])
        assert report["target"]["stages"]["kernels"] == "interpreted"
