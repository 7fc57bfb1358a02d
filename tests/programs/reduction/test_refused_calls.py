"""Calls that eager refuses and compiled accepts, reduced like any other bug: in a large model, in its later calls."""

from __future__ import annotations

import time

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.diagnosis.worker.minimization import CandidateTools, capture_programs, make_job
from fuzzcompile.diagnosis.worker.minimize_task import LocalAsker
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.ir.case_source import CaseText, count_model_lines
from fuzzcompile.programs.ir.evaluation import evaluate
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement
from fuzzcompile.programs.scripts import issue_script
from fuzzcompile.programs.scripts.clean_process import FinishedProcess
from fuzzcompile.programs.shrink.minimize import minimize, reduce_programs
from fuzzcompile.programs.shrink.outcome import ProbeResult
from fuzzcompile.programs.shrink.search import CandidateTests, SearchBudget, same_bug

CPU = torch.device("cpu")
# Eager counts no places from the end here, and compiled code does.
SPREADS = """
import torch
from torch import nn

class Spread(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x, where):
        x = torch.tanh(self.project(x))
        return torch.index_add(x, 1, where, x[:, :2]) * 0.5
"""
LATER = """
def make():
    return Spread().eval(), (torch.ones(2, 4, 8), torch.tensor([0, 1]))

CALLS = [(torch.ones(2, 4, 8), torch.tensor([0, 1])), (torch.ones(2, 4, 8), torch.tensor([0, -1]))]
"""
LARGE = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.spread, self.after = Block(), Spread(), Block()
        self.register_buffer("where", torch.tensor([0, -1]))

    def forward(self, x):
        return self.after(self.spread(self.before(x), self.where))

BACKWARD = True

def make():
    torch.manual_seed(0)
    return Model().train(), (torch.randn(2, 4, 8),)
"""


def test_of_several_calls_that_which_eager_refuses_is_captured():
    (program,) = capture_programs(SPREADS + LATER)
    refused = evaluate(program)
    assert refused.failed is not None and refused.error.startswith("IndexError")
    assert next(value for value in program.inputs if value.dtype == torch.int64).values.tolist() == [0, -1]


class Anything:
    """A compiler that accepts every program, whatever eager says of it."""

    def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
        return ProbeResult(True, True, "accepts_invalid")


def test_only_programs_that_eager_refuses_in_the_same_way_are_taken():
    x, where = Input.from_tensor("x", torch.ones(3, 4)), Input.from_tensor("where", torch.tensor([0, -1]))
    statements = (
        Statement("wide", "function", "torch.sin", (Ref("x"),)),
        Statement("part", "method", "narrow", (Ref("wide"), 0, 0, 2)),
        Statement("spread", "function", "torch.index_add", (Ref("wide"), 0, Ref("where"), Ref("part"))),
        Statement("last", "function", "torch.cos", (Ref("spread"),)),
    )
    program = Program((x, where), statements, Ref("last"))
    reduced = reduce_programs(
        [program], CandidateTests(Anything(), SearchBudget(200)), screens=False, refuses=True
    ).best
    assert [statement.target for statement in reduced.statements] == ["torch.index_add"]
    # Shapes that do not go together are refused too, but that is another error.
    assert evaluate(reduced).refusal == evaluate(program).refusal and not reduced.is_recorded


REFUSED = {
    "verdict": "accepts_invalid",
    "is_bug": True,
    "confidence": "high",
    "signature": "unattributed:-:IndexError",
    "culprit": None,
    "detail": "eager raises IndexError: index 7 is out of bounds for dimension 2; compiled runs",
}


def test_what_a_large_case_had_no_time_to_name_a_small_one_may():
    small = {
        **REFUSED,
        "signature": "decomposition:torch/x.py:index_add",
        "culprit": {"stage": "decomposition", "rewrite": "aten.index_add.default"},
        "detail": "eager raises IndexError: index 1 is out of bounds for dimension 0; compiled runs",
    }
    assert same_bug(REFUSED, small)
    assert not same_bug(REFUSED, {**small, "detail": "eager raises RuntimeError: wrong sizes; compiled runs"})
    assert not same_bug(REFUSED, {**small, "verdict": "metadata"})
    known = {**REFUSED, "culprit": {"stage": "joint_graph"}, "signature": "joint_graph:torch/x.py:index_add"}
    assert not same_bug(known, small)


@pytest.mark.slow
def test_a_large_model_in_training_around_one_refused_call_becomes_the_call(tmp_path, monkeypatch):
    monkeypatch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(1, text, True))
    path = tmp_path / "large.py"
    path.write_text(SPREADS + LARGE)
    with isolate_process():
        report = triage(load(path, CPU), CPU).to_json()
    if report["verdict"] != "accepts_invalid":
        pytest.skip("this torch refuses the call in compiled code too")
    # As where the time for a large case was up.
    report |= {"culprit": None, "signature": "unattributed:-:accepts_invalid", "cause": None}
    job = make_job(path.read_text(), report, None)
    outcome = minimize(
        job, CandidateTools(LocalAsker(), SignatureLock.of(report), report), SearchBudget(150, time.monotonic() + 400)
    )
    assert outcome.how == "graph" and outcome.operators == 1 < 20 < outcome.operators_before, outcome.note
    assert "torch.index_add(" in outcome.source and count_model_lines(outcome.source) <= 6
    assert outcome.report["culprit"]["rewrite"] == "aten.index_add.default"
