"""A way to run something twice, added from outside, names what was not named before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch._dynamo
from contributing import block
from torch._functorch._aot_autograd import runtime_wrappers

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.stages.ways import SideBySide
from fuzzcompile.extend import Pair, get_stage, measure_values
from fuzzcompile.programs.casefiles.case_module import load_case

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return (lambda x: torch.sin(x) @ x), (torch.randn(8, 8),)
"""


@pytest.fixture
def scaled_behind_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd multiplies what its graph gives by 1.01."""
    own: Callable[..., Callable[..., list[object]]] = runtime_wrappers._create_runtime_wrapper

    @functools.wraps(own)
    def create(*args: object, **kwargs: object) -> Callable[..., list[object]]:
        run = own(*args, **kwargs)

        @functools.wraps(run)
        def scaled(*given: object, **named: object) -> list[object]:
            return [value * 1.01 if isinstance(value, torch.Tensor) else value for value in run(*given, **named)]

        return scaled

    monkeypatch.setattr(runtime_wrappers, "_create_runtime_wrapper", create)


@pytest.fixture
def added() -> Iterator[ModuleType]:
    """The example of CONTRIBUTING.md, which adds its way to the stage."""
    stage = get_stage("functionalization")
    assert isinstance(stage, SideBySide)
    before = list(stage.ways)
    yield block("tests/diagnosis/stages/runtime_way.py").executed()
    stage.ways[:] = before


def judge(tmp_path: Path) -> dict[str, object]:
    path = tmp_path / "case.py"
    path.write_text(CASE)
    report = triage(load_case(path), torch.device("cpu")).to_json()
    assert report["is_bug"] and report["culprit"] is not None
    return dict(report["culprit"])


@pytest.mark.usefixtures("scaled_behind_the_graph")
def test_without_the_way_what_is_left_is_the_runtime(tmp_path: Path) -> None:
    culprit = judge(tmp_path)
    assert (culprit["stage"], culprit["rewrite"]) == ("functionalization", "_create_runtime_wrapper")
    assert culprit["necessary"] is None and culprit["step"] is None


@pytest.mark.usefixtures("scaled_behind_the_graph", "added")
def test_the_way_names_the_place(tmp_path: Path) -> None:
    culprit = judge(tmp_path)
    assert culprit["family"] == "runtime" and str(culprit["source"]).endswith("runtime_wrappers.py")
    assert culprit["step"] == pytest.approx(0.01, rel=0.1)
    assert culprit["details"] == {"kind": "values", "differs": "out0"}


def test_the_way_finds_nothing_in_right_programs(added: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(CASE)
    assert not triage(load_case(path), torch.device("cpu")).to_json()["is_bug"]


def test_a_step_parts_by_its_values_or_dtype_beyond_rounding() -> None:
    value = torch.arange(1.0, 5.0, dtype=torch.float64)
    assert measure_values(Pair("a", value, value * (1 + 1e-12))) is None
    parting = measure_values(Pair("a", value, value * 1.01))
    assert parting is not None and parting.step == pytest.approx(0.04 / (1.01 * value).square().mean().sqrt().item())
    other = measure_values(Pair("a", value, value.to(torch.float32)))
    assert other is not None and other.step is None
