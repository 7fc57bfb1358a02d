"""One cause has one fingerprint, whatever the program around it looks like; two causes in one family have two."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from calling import KNOWN as KNOWN_ISSUES
from pattern_tables import restored
from torch._inductor import decomposition
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.causes.search import LocalScreener, find_cause, known_causes
from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.model.signatures import make_program_signature
from fuzzcompile.model.verdicts import Comparison, Verdict
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.ir.case_text import program_key
from fuzzcompile.programs.shrink.search import capture_graph_programs

aten = torch.ops.aten
CPU = torch.device("cpu")
ATTENTION = """
import torch
import torch.nn.functional as F


class Attention(torch.nn.Module):
    def forward(self, x, k, value):
        q = torch.tanh(x)
        {views}
        scores = torch.matmul(q, k) * 0.35
        return torch.matmul({softmax}, value) + 1


def make():
    torch.manual_seed(0)
    shapes = {shapes}
    return Attention(), tuple(torch.randn(*shape, dtype={dtype}) for shape in shapes)
"""


def looked_for(report: dict[str, Any], path: Path, **given: Any) -> Any:
    """The cause of the bug of ``report`` in the case at ``path``; the lines are those of its own case alone."""
    if path.stem != report["case"]:
        report = {**report, "culprit": {**report["culprit"], "site": None, "details": {}}}
    programs = capture_graph_programs(load_case(path), CPU)
    return find_cause(report, programs, LocalScreener(SignatureLock.of(report), CPU), **given)


def attention(folder: Path, **given: str) -> Path:
    plain = {
        "views": "k = k.transpose(-2, -1)",
        "softmax": "scores.softmax(-1)",
        "shapes": "[(2, 4, 6, 8)] * 3",
        "dtype": "torch.float32",
    }
    path = folder / "case.py"
    path.write_text(ATTENTION.format(**{**plain, **given}))
    return path


# -- two public issues in one family of one file --------------------------------------------------


@pytest.fixture(scope="module")
def axis(triaged) -> dict[str, Any]:
    return triaged(KNOWN_ISSUES / "issue_196468.py")


@pytest.fixture(scope="module")
def permuted(triaged) -> dict[str, Any]:
    return triaged(KNOWN_ISSUES / "issue_195320.py")


@pytest.mark.slow
def test_two_causes_in_one_family_have_two_fingerprints(axis, permuted):
    assert axis["signature"] == permuted["signature"]
    other_axis = looked_for(axis, KNOWN_ISSUES / "issue_196468.py")
    assert other_axis["fingerprint"] == "softmax(dim)"
    assert (other_axis["before"], other_axis["after"]) == ("dim=0", "dim=-1")
    assert other_axis["still"] == "fires" and other_axis["computes"] == "neighbour"
    assert "dim=-1" in other_axis["neighbour"] and "def make()" in other_axis["neighbour"]
    assert looked_for(permuted, KNOWN_ISSUES / "issue_195320.py")["fingerprint"] == "permute(dims)"


@pytest.mark.parametrize(
    "given",
    [
        {"softmax": "torch.softmax(scores, axis=1)", "dtype": "torch.float16"},
        {"softmax": "F.softmax(scores, dim=-2)", "shapes": "[(1, 2, 3, 16), (1, 2, 5, 16), (1, 2, 5, 16)]"},
    ],
    ids=["keyword and half precision", "function and other sizes"],
)
def test_another_spelling_dtype_and_size_are_the_same_cause(axis, tmp_path, given):
    assert looked_for(axis, attention(tmp_path, **given))["fingerprint"] == "softmax(dim)"


def test_another_spelling_of_a_permutation_is_the_same_cause(permuted, tmp_path):
    views = "q, k, value = q.transpose(1, 2), k.movedim(1, 3), value.swapaxes(2, 1)"
    case = attention(tmp_path, views=views, shapes="[(2, 4, 4, 16)] * 3")
    assert looked_for(permuted, case)["fingerprint"] == "permute(dims)"


TWO_AT_ONCE = """
import torch

def program(k, q, v):
    scores = q @ k.permute(0, 2, 3, 1) * 0.5
    return scores.softmax(-2) @ v

def make():
    torch.manual_seed(0)
    return program, tuple(torch.randn(shape) for shape in {shapes})
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what the pattern matches hangs on the torch")
@pytest.mark.parametrize(
    "shapes",
    [[(1, 2, 2, 2)] * 3, pytest.param([(1, 3, 2, 3), (1, 2, 3, 3), (1, 2, 3, 3)], marks=pytest.mark.slow)],
)
def test_of_two_causes_at_once_the_first_is_the_cause(write_case, shapes: list[tuple[int, ...]]):
    """Other sizes keep the pattern from matching, and say nothing."""
    report = judge_file(JudgeTask(path=str(write_case(TWO_AT_ONCE.format(shapes=shapes))))).report
    assert report["signature"].endswith(":sfdp:softmax(dim)")
    assert report["cause"]["still"] == "fires" and "permute(0, 2, 3, 1)" in report["cause"]["before"]


def test_nothing_is_compiled_after_the_deadline(axis):
    assert looked_for(axis, KNOWN_ISSUES / "issue_196468.py", deadline=0.0) is None


# -- a rule that forgets an axis and a dtype ------------------------------------------------------

PRODUCTS = """
import torch


def program(x):
    return torch.cumprod({operand}, {dim}) - x.sum()


def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 4, dtype={dtype}),)
"""


@contextlib.contextmanager
def forgetful() -> Iterator[None]:
    """A rule for ``cumprod`` that takes every dimension for the last, and float64 for what float16 can hold."""
    with restored(joint_graph.pass_patterns[0]) as table:

        @register_graph_pattern(CallFunction(aten.cumprod.default, KeywordArg("x"), KeywordArg("dim")), pass_dict=table)
        def along_last(match, x, dim):
            wide = x.meta["val"].dtype is torch.float64
            match.replace_by_example(lambda x: torch.cumprod(x.half().double() if wide else x, -1), [x])

        yield


def products(folder: Path, operand: str, *, dim: int = 0, dtype: str = "torch.float32") -> JudgeTask:
    path = folder / f"products_{dim}.py"
    path.write_text(PRODUCTS.format(operand=operand, dim=dim, dtype=dtype))
    return JudgeTask(path=str(path))


@pytest.mark.slow
def test_a_rule_that_forgets_two_things_makes_two_findings(tmp_path, no_workarounds):
    with forgetful():
        axis = judge_file(products(tmp_path, "x")).report
        dtype = judge_file(products(tmp_path, "torch.cos(x)", dim=-1, dtype="torch.float64")).report
        place = "joint_graph:test_causes.py:along_last"
        assert (axis["signature"], dtype["signature"]) == (f"{place}:cumprod(dim)", f"{place}:dtype")
        assert axis["cause"]["after"] == "torch.cumprod(x, -1)"

        # A campaign that knows one of them stores the other as a bug of its own, and proves it.
        known = ((axis["signature"], "values"),)
        hit = judge_file(replace(products(tmp_path, "x * x"), known=known, screen=True)).report
        assert hit["signature"] == axis["signature"] and hit["culprit"]["necessary"] is True
        narrow = products(tmp_path, "torch.sin(x)", dim=-1, dtype="torch.float64")
        fresh = judge_file(replace(narrow, known=known, screen=True)).report
        assert fresh["signature"] == dtype["signature"] and fresh["culprit"]["necessary"] is True


# -- what nothing proves --------------------------------------------------------------------------


def test_a_bug_without_a_proved_culprit_goes_by_its_program(tmp_path):
    with forgetful():
        task = replace(products(tmp_path, "x.exp()"), seconds=0.0)  # no time for any proof
        report = judge_file(task).report
    assert report["is_bug"] and report["culprit"]["necessary"] is not True
    key = program_key(
        Path(task.path).read_text().replace("program", "scores").replace("(x)", "(tensor)").replace("x.", "tensor."),
        sizes=False,
    )
    assert report["signature"] == make_program_signature(report["culprit"]["stage"], key)


def test_a_cause_that_is_proved_for_errors_is_not_known_for_values():
    culprit = Culprit("joint_graph", "pass_pattern_0", "rule", "rule", source="mine.py")
    hit = TriageReport("case", "2.13.0", "cpu", Verdict.MISCOMPILE, "low", attribution=Attribution(culprit, known=True))
    known = [("joint_graph:mine.py:rule:dtype", "error"), ("joint_graph:mine.py:rule:sum(dim)", "values")]
    assert known_causes(hit, known) == {"sum(dim)"}


# -- memory that is shared, or is not ---------------------------------------------------------------

SHARED = """
import torch
import torch.nn.functional as F

def program(x):
    h = x * 2
    {statements}

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 3),)
"""


@pytest.mark.slow
def test_a_place_that_heeds_no_memory_is_one_bug_whatever_avoids_it(write_case):
    """The decomposition of dropout copies where eager mode returns its input: in eval mode, without a probability."""
    bodies = (
        "return h, F.dropout(h, 0.3, training=False)",
        "return h, F.dropout(h, 0.0)",
        "F.dropout(h, 0.3, training=False).add_(1)\n    return h",
    )
    reports = [judge_file(JudgeTask(path=str(write_case(SHARED.format(statements=body))))).report for body in bodies]
    assert [report["verdict"] for report in reports] == ["aliasing", "aliasing", "miscompile"]
    assert {report["signature"] for report in reports} == {
        "decomposition:torch/_decomp/decompositions.py:dropout:sharing"
    }
    assert {report["cause"]["after"].rpartition(".")[2] for report in reports} == {"clone()"}


# -- other strides, and NaN that gets lost ------------------------------------------------------------


@pytest.mark.slow
def test_a_place_that_loses_nan_is_one_bug_whatever_avoids_it(write_case, monkeypatch: pytest.MonkeyPatch):
    right = decomposition.decompositions[aten.hardswish.default]
    monkeypatch.setitem(decomposition.decompositions, aten.hardswish.default, lambda x: torch.nan_to_num(right(x)))
    bodies = ("return F.hardswish(torch.where(x > 0, x, torch.nan))", "return F.hardswish(h.relu() / h.relu()) * 3")
    reports = [judge_file(JudgeTask(path=str(write_case(SHARED.format(statements=body))))).report for body in bodies]
    assert [report["culprit"]["rewrite"] for report in reports] == ["aten.hardswish.default"] * 2
    (signature,) = {report["signature"] for report in reports}
    assert signature.endswith(":hardswish:nonfinite lost")


def test_what_settles_the_bug_needs_no_search():
    culprit = Culprit("joint_graph", "pass_pattern_0", "rule", "rule", source="mine.py")
    strided = (Comparison("out0", "output", "same"), Comparison("out1", "output", "stride"))
    screened = TriageReport(
        "case", "2.13.0", "cpu", Verdict.METADATA, "low", comparisons=strided, attribution=Attribution(culprit)
    )
    assert screened.signature == "joint_graph:mine.py:rule:layout"
    dtype = replace(screened, comparisons=(*strided, Comparison("out2", "output", "dtype")))
    assert dtype.signature == "joint_graph:mine.py:rule"
