"""Of a function that returns several values, the one that is wrong is attributed alone, where it shows alone."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch._inductor import lowering
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.trials.case_runs import CaseRuns
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import keep_output
from fuzzcompile.run.runs import run_eager

CPU = torch.device("cpu")
FOUR = """
import torch

def program(a, b, c, d):
    return a.sin(), b.atan(), (c * a).trunc(), d.sigmoid() * 3

def make():
    torch.manual_seed(0)
    return program, tuple(torch.randn(5, 9).mul(4).requires_grad_() for _ in range(4))

BACKWARD = True
"""
DRAWING = FOUR.replace("d.sigmoid()", "torch.rand_like(d)")
TRUNC = torch.ops.aten.trunc.default


def round_down(least: int):
    """A lowering of ``trunc`` that rounds down in graphs of at least so many nodes."""
    right, wrong = lowering.lowerings[TRUNC], lowering.lowerings[torch.ops.aten.floor.default]
    return lambda x: (wrong if len(V.graph.graph.nodes) >= least else right)(x)


@pytest.fixture
def traced(monkeypatch) -> list[int]:
    """How many operators were lowered in each graph, as each was looked at."""
    sizes: list[int] = []
    run = GraphLowering.run

    def counted(self, *args):
        sizes.append(sum(node.op == "call_function" for node in self.graph.nodes))
        return run(self, *args)

    monkeypatch.setattr(GraphLowering, "run", counted)
    return sizes


def judge(write_case, source: str, least: int):
    with mock.patch.dict(lowering.lowerings, {TRUNC: round_down(least)}):
        return triage(load_case(write_case(source)), CPU)


def test_what_is_wrong_alone_is_attributed_alone(write_case, traced):
    report = judge(write_case, FOUR.replace("BACKWARD = True", ""), 0)
    culprit = report.attribution.culprit
    assert culprit is not None and (culprit.stage, culprit.family, culprit.necessary) == ("lowering", "trunc", True)
    # The report is on the whole program, which is compiled for the verdict, its confirmation and the workaround.
    assert {comparison.name for comparison in report.comparisons} >= {"out0", "out1", "out2", "out3"}
    wholes = [size for size in traced if size > 2]
    assert len(wholes) <= 3 and len(traced) - len(wholes) >= 2 and report.attribution.workaround is not None


@pytest.mark.slow
def test_what_is_wrong_in_the_whole_alone_is_attributed_there(write_case):
    report = judge(write_case, FOUR.replace("BACKWARD = True", ""), 11)
    culprit = report.attribution.culprit
    assert culprit is not None and (culprit.stage, culprit.family, culprit.necessary) == ("lowering", "trunc", True)


@pytest.mark.parametrize(
    ("source", "wrong", "found"),
    [
        (FOUR, ["gradient of input1", "out3"], 3),
        (FOUR, ["gradient of input1"], 1),
        (FOUR, ["gradient of input0"], None),  # of two values
        (FOUR, ["input2 after the call"], None),
        (DRAWING, ["out1"], None),
        (FOUR.replace("a.sin(), b.atan(), ", ""), ["out1"], None),
    ],
)
def test_the_value_is_the_one_that_is_wrong_or_has_the_gradient(write_case, source, wrong, found):
    assert CaseRuns(load_case(write_case(source)), CPU).find_value(wrong) == found


def test_a_part_computes_what_the_whole_does(write_case):
    whole = load_case(write_case(FOUR))
    expected, part = (run_eager(case, CPU).index_by_name() for case in (whole, keep_output(whole, 2)))
    assert torch.equal(part["out2"].value, expected["out2"].value) and part["out1"].value is None
    assert part["gradient of input1"].value is None
