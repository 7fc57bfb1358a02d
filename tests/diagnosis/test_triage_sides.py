"""Sides beside ``torch.compile``: exported programs and AOTInductor, judged and attributed alike."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import behind_plants
import planting
import pytest
import torch
from torch._inductor import compile_fx
from torch._inductor.fx_passes import joint_graph

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.errors import CaseError, UsageError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 5)
        self.register_buffer("calls", torch.zeros(5))

    def forward(self, x):
        self.calls.add_(1)
        return torch.sin(self.line(x)) + self.calls, x.t()

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 8),)
"""
SIZES = "\nDYNAMIC = True\nCALLS = [(torch.randn(7, 8),), (torch.randn(1, 8),), (torch.randn(4, 8),)]\n"
BRANCHES = """
import torch

def program(x):
    return x + 1 if x.sum() > 0 else x - 1

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 8),)
"""
ONLY_EXPORTED = SOURCE.replace("torch.sin(", "(1 + torch.compiler.is_exporting()) * torch.sin(")

Judged = Callable[..., TriageReport]


@pytest.fixture
def judged(write_case) -> Judged:
    return lambda path, source=SOURCE, **how: triage(
        load_case(write_case(f'{source}\nPATH = "{path}"\n')), CPU, JudgeTask(**how)
    )


def aoti_sees_cosines() -> mock._patch:
    """AOTInductor, and nothing else, computes another function."""
    original = compile_fx.compile_fx_aot

    def planted(model, *args, **kwargs):
        for node in model.graph.find_nodes(op="call_function", target=planting.aten.sin.default):
            node.target = planting.aten.cos.default
        model.recompile()
        return original(model, *args, **kwargs)

    return mock.patch.object(compile_fx, "compile_fx_aot", planted)


@pytest.mark.parametrize("source", [SOURCE, SOURCE + SIZES, SOURCE + "\nBACKWARD = True\n"])
def test_a_clean_program_is_clean_when_exported(judged: Judged, source: str) -> None:
    report = judged("export", source)
    assert (report.verdict.is_bug, report.confidence) == (False, "high")
    assert report.to_json()["evidence"]["path"] == "export"
    assert report.graphs >= 1


@pytest.mark.slow
def test_what_export_alone_gets_wrong_is_laid_to_the_capture(judged: Judged) -> None:
    report = judged("export", ONLY_EXPORTED)
    assert report.verdict == "miscompile"
    assert report.attribution.culprit is not None
    assert report.attribution.culprit.stage == "dynamo"
    assert report.attribution.workaround is not None
    assert report.attribution.workaround.how == "torch.compile(...)"


@pytest.mark.slow
def test_compiled_compared_with_an_export_that_is_wrong(judged: Judged) -> None:
    assert not judged("compile", against="export").is_bug
    report = judged("compile", ONLY_EXPORTED, against="export")
    assert (report.verdict, report.path) == ("miscompile", "export")


def test_a_limit_of_export_is_no_bug(judged: Judged) -> None:
    with pytest.raises(CannotJudge, match=r"cannot be exported.*data-dependent"):
        judged("export", BRANCHES)


def test_a_program_that_eager_refuses_is_invalid_when_exported(judged: Judged) -> None:
    assert judged("export", SOURCE.replace("self.line(x)", "self.line(x.t())")).verdict == "invalid"


@pytest.mark.parametrize(
    ("path", "more", "why"),
    [
        ("nonsense", "", "use one of compile, export, aoti"),
        ("export", "MODE = 'max-autotune'", "torch.compile's"),
        ("aoti", "BACKWARD = True", "computes no gradients"),
    ],
)
def test_what_a_side_cannot_be_asked_for(judged: Judged, path: str, more: str, why: str) -> None:
    with pytest.raises(CaseError, match=why):
        judged(path, f"{SOURCE}\n{more}\n")


def test_a_side_is_not_compared_with_itself(judged: Judged) -> None:
    with pytest.raises(UsageError, match="run by 'export' itself"):
        judged("export", against="export")


def test_a_screen_of_aotinductor_shows_what_its_graphs_get_wrong(judged: Judged) -> None:
    clean = judged("aoti", SOURCE + SIZES, screen=True)
    assert (clean.verdict.is_bug, clean.screened, clean.path) == (False, True, "aoti")
    # Of the calls, each has sizes for which the program that was exported first holds, or another is exported.
    assert clean.graphs <= 3


@pytest.mark.slow
def test_a_clean_program_is_clean_under_aotinductor(judged: Judged) -> None:
    report = judged("aoti", SOURCE + SIZES)
    assert (report.verdict.is_bug, report.confidence) == (False, "high")


@pytest.mark.slow
def test_a_rewrite_that_is_wrong_is_proved_under_aotinductor(judged: Judged) -> None:
    with planting.handler(joint_graph.patterns, planting.aten.sin.default, planting.sin_off):
        report = judged("aoti")
    culprit = report.attribution.culprit
    assert culprit is not None
    assert (culprit.rewrite, culprit.necessary, report.confidence) == ("sin_off", True, "high")


@pytest.mark.slow
def test_a_lowering_that_is_wrong_is_proved_under_aotinductor(judged: Judged) -> None:
    with behind_plants.lowering(planting.aten.sin.default, behind_plants.scaled):
        report = judged("aoti")
    culprit = report.attribution.culprit
    assert culprit is not None
    assert (culprit.stage, culprit.family, culprit.necessary) == ("lowering", "sin", True)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "how"), [("aoti", {}), ("compile", {"against": "aoti"})])
def test_what_aotinductor_alone_gets_wrong_is_laid_to_it(judged: Judged, path: str, how: dict[str, str]) -> None:
    with aoti_sees_cosines():
        report = judged(path, **how)
    assert (report.verdict.kind, report.path) == ("values", "aoti")
    assert report.attribution.workaround is not None
    assert report.attribution.workaround.how == "torch.compile(...)"


@pytest.mark.slow
def test_outputs_that_share_the_models_memory_are_left_out_and_said_under_aotinductor(judged: Judged) -> None:
    report = judged("aoti", SOURCE.replace("x.t()", "self.calls"))
    assert (report.verdict.is_bug, report.confidence) == (False, "low")
    assert any("package has copies" in note for note in report.notes)
