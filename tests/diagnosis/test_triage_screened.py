"""Judging at two speeds: a screen checks every rewrite and generates no code; what looks wrong is judged in full."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from planting import handler, sin_off
from torch._inductor import config
from torch._inductor.codegen import cpp
from torch._inductor.fx_passes import joint_graph

from fuzzcompile.diagnosis import engine
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.facts import find_facts
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

SINE = """
import torch


def program(x):
    return torch.sin(x) + torch.nn.functional.gelu(x) + torch.nn.functional.layer_norm(x, (40,))


def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 40),)
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    path = tmp_path_factory.mktemp("screened") / "sine.py"
    path.write_text(SINE)
    case, cpu = load_case(path), torch.device("cpu")
    return lambda *, deadline=None, **how: triage(case, cpu, JudgeTask(**how), deadline=deadline)


@pytest.fixture(scope="module")
def clean(judge) -> tuple[TriageReport, TriageReport]:
    """A clean program, screened and in full."""
    return judge(screen=True), judge()


def reached(report: TriageReport, stage: str) -> set[str]:
    return {one.rewrite for one in report.coverage if one.stage == stage}


def test_a_clean_program_is_only_screened(clean):
    screened, full = clean
    assert screened.screened and (screened.cost.compiles, screened.cost.screens) == (0, 1)
    assert "no generated code" in screened.detail
    assert not full.screened and (full.cost.compiles, full.cost.screens) == (1, 0)
    assert not screened.is_bug and not full.is_bug


@pytest.mark.parametrize("screen", [True, False])
def test_the_compiler_is_made_ready_before_the_program_runs(tmp_path, monkeypatch, screen: bool):
    """A program may change its process, and what it changed would be in the patterns that are traced."""
    steps = list[str]()
    monkeypatch.setitem(sys.modules, "steps", types.SimpleNamespace(done=steps))
    monkeypatch.setattr(engine, "initialise_patterns", lambda device: steps.append("patterns"))
    monkeypatch.setattr(engine, "probe_unknown_torch", lambda: steps.append("probe"))
    path = tmp_path / "step.py"
    path.write_text(
        "import steps\nimport torch\n\n\n"
        "def make():\n    steps.done.append('program')\n    return torch.sin, (torch.ones(3),)\n"
    )
    triage(load_case(path), torch.device("cpu"), JudgeTask(screen=screen))
    assert steps[:3] == ["patterns", "probe", "program"]


def test_what_was_reached_is_counted(clean):
    screened, full = clean
    decomposed = {"aten.gelu.default", "aten.native_layer_norm.default"}
    assert decomposed <= reached(screened, "decomposition") == reached(full, "decomposition")
    assert {"aten.sin.default", "aten.erf.default", "aten.rsqrt.default"} <= reached(full, "lowering")
    shapes = " ".join(reached(full, "scheduler"))
    assert "Pointwise" in shapes and "Reduction" in shapes
    assert not reached(screened, "lowering") and not reached(screened, "scheduler")


def test_the_next_compile_counts_its_own(tmp_path, clean):
    path = tmp_path / "plain.py"
    path.write_text("import torch\n\n\ndef make():\n    return torch.cos, (torch.ones(3),)\n")
    assert reached(triage(load_case(path), torch.device("cpu")), "lowering") == {"aten.cos.default"}


def test_a_wrong_rewrite_is_seen_in_a_screen_and_proved_in_full(judge):
    with handler(joint_graph.pass_patterns[0], torch.ops.aten.sin.default, sin_off):
        found = judge(screen=True)
        assert found.is_bug and not found.screened
        assert found.attribution.culprit.rewrite == "sin_off" and found.attribution.culprit.necessary is True
        assert found.cost.screens >= 1 and found.cost.compiles >= 2
        known = {(found.signature, found.verdict.kind)}
        again = judge(screen=True, known=known)
    assert again.is_bug and again.screened and again.signature == found.signature
    assert (again.cost.compiles, again.cost.screens, again.attribution.culprit.necessary) == (0, 2, True)


def test_a_pass_that_computes_with_real_tensors_runs_in_a_screen(judge):
    """In AOTAutograd's fake mode, ``item()`` of a constant raises."""
    seen = []

    def folding(graph):
        seen.append(torch.arange(4).sum().item())

    with config.patch(post_grad_custom_post_pass=folding):
        report = judge(screen=True)
    assert report.screened and report.verdict in ("equal", "rounding") and seen == [6]


def test_wrong_code_is_seen_in_full_only(judge, monkeypatch):
    monkeypatch.setattr(cpp.CppVecOverrides, "sin", staticmethod(lambda x: f"{x}.cos()"))
    monkeypatch.setattr(cpp.CppOverrides, "sin", staticmethod(lambda x: f"std::cos({x})"))
    assert not judge(screen=True).is_bug
    cut_off = judge(deadline=0.0)  # no further compile is begun: who is at fault is tested elsewhere
    assert cut_off.is_bug and cut_off.confidence == "low"
    assert any("the time was over" in note for note in cut_off.notes)


def test_a_version_without_facts_of_its_own_is_said_in_the_notes(judge, clean, monkeypatch):
    """The facts of the nearest version stand in: the reader must know that they may not hold."""
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    monkeypatch.setattr("fuzzcompile.model.facts.installed_torch", lambda: "2.14.0")
    (note,) = judge(screen=True).notes
    assert note == find_facts("2.14.0").note and "2.14.0, only for" in note and "that of 2.15 is used" in note
    assert all(find_facts(report.torch).note in (None, *report.notes) for report in clean)
