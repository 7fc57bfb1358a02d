"""Further calls of a case: each is judged against eager and float64 of its own, whatever the first one shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import planting
import pytest
import torch
from torch._dynamo.guards import GuardBuilder
from torch._inductor.fx_passes import post_grad

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
CALLS = """
import torch

def program(x):
    return torch.sin(x).sum(-1)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 6),)

DYNAMIC = True
CALLS = [(torch.randn(7, 6),), (torch.randn(1, 6),), (torch.randn(6, 7).t(),)]
"""
COUNTED = """
import torch
from torch import nn

class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 2

    def forward(self, x):
        self.calls += 1
        return x.tanh() * self.calls

def make():
    torch.manual_seed(0)
    return Counted().eval(), (torch.randn(4, 6),)

CALLS = [(torch.randn(4, 6),), (torch.randn(4, 6),)]
"""
MARKED = (
    CALLS
    + """
def run(model, inputs):
    torch._dynamo.mark_dynamic(inputs[0], 0)
    return model(*inputs)
"""
)

# One graph runs in both calls, and the backward pass of the second before that of the first.
BACKWARD_IN_REVERSE = """
import torch

BACKWARD = True

def program(x):
    return torch.nn.functional.layer_norm(x, (8,))

def run(model, inputs):
    return model(inputs[0]), model(inputs[0] * 2)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 8, requires_grad=True),)
"""

Judged = Callable[..., TriageReport]


@pytest.fixture
def judged(write_case) -> Judged:
    return lambda source: triage(load_case(write_case(source)), CPU, JudgeTask(screen=True))


@contextmanager
def sines_of_one_row_off() -> Iterator[None]:
    """A rewrite takes it for granted that there are two rows at least."""

    def sin_of_rows(match, x):
        match.replace_by_example(lambda x: torch.sin(x) * (torch.sym_max(x.shape[0], 2) / x.shape[0]), [x])

    with planting.handler(post_grad.pass_patterns[1], planting.aten.sin.default, sin_of_rows):
        yield


@contextmanager
def no_guards_on_numbers() -> Iterator[None]:
    """What was compiled for one number is run for every other."""
    names = [name for name in ("EQUALS_MATCH", "CONSTANT_MATCH") if hasattr(GuardBuilder, name)]
    originals = {name: getattr(GuardBuilder, name) for name in names}

    def without(name: str) -> Callable[..., None]:
        def guard(builder, guard, *args, **kwargs):
            if type(builder.get(guard)) is not int:
                originals[name](builder, guard, *args, **kwargs)

        return guard

    with mock.patch.multiple(GuardBuilder, **{name: without(name) for name in names}):
        yield


def wrong(report: TriageReport) -> set[str]:
    return {comparison.name for comparison in report.comparisons if comparison.finding == "far"}


@pytest.mark.parametrize("source", [CALLS, COUNTED, BACKWARD_IN_REVERSE])
def test_clean_calls_are_clean(judged: Judged, source: str) -> None:
    report = judged(source)
    assert (report.verdict.is_bug, report.confidence) == (False, "high")


@pytest.mark.slow
def test_a_rewrite_that_is_wrong_for_one_row_shows_in_that_call_alone(judged: Judged) -> None:
    with sines_of_one_row_off():
        report = judged(CALLS)
    assert report.verdict == "miscompile"
    assert wrong(report) == {"call2.out0"}
    assert report.attribution.culprit is not None
    assert report.attribution.culprit.rewrite == "sin_of_rows"


@pytest.mark.slow
def test_a_guard_that_is_missing_shows_in_later_calls_and_is_dynamos(judged: Judged) -> None:
    with no_guards_on_numbers():
        report = judged(COUNTED)
    assert report.verdict == "stale"
    assert wrong(report) == {"call1.out0", "call2.out0"}
    assert report.attribution.culprit is not None
    assert report.attribution.culprit.stage == "dynamo"


def test_a_size_that_is_said_to_be_dynamic_and_is_not_is_no_bug(judged: Judged) -> None:
    source = MARKED.replace("torch.sin(x).sum(-1)", "x.view(4, 6)").replace("(torch.randn(7, 6),), ", "")
    with pytest.raises(CannotJudge, match="without a value at compile time"):
        judged(source.replace("(torch.randn(1, 6),), (torch.randn(6, 7).t(),)", "(torch.randn(4, 6),)"))
