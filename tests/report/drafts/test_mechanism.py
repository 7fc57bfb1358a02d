"""What the part at fault did, in one sentence: of each kind of evidence, and nothing where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from findings import CULPRIT
from triage_reports import output, report

from fuzzcompile.report.mechanism import tell_mechanism

INPUTS = [" a: f32[4] = input", " b: f32[4] = input"]


def tell(verdict: str, details: dict[str, Any], *, rewrite: str = "addmm", **others: Any) -> str:
    culprit = {**CULPRIT, "rewrite": rewrite, "details": details}
    return tell_mechanism(report(verdict, output(finding="far"), culprit=culprit, **others))


def diff(*lines: str, **details: Any) -> dict[str, Any]:
    return {"diff": "\n".join(["@@ -1 +1 @@", *INPUTS, *lines]), **details}


ADDMM = (
    "-c: f32[4] = aten.addmm.default(a, b, beta=-1)",
    "+d: f32[4] = aten.mm.default(a, b)",
    "+c: f32[4] = aten.add.Tensor(a, d)",
)


def test_what_is_put_in_place_of_what():
    told = tell("miscompile", diff(*ADDMM, float64=0.5))
    assert told == (
        "`addmm` puts `mm(…)` and `add(…)` in place of `addmm(…, beta=-1)`: in float64, the results of the two "
        "differ by 50% of their size."
    )
    # Of a step without bounds it is not known which of both sides is infinite.
    endless = tell("nonfinite", diff(*ADDMM, non_finite="inf"))
    assert endless.endswith(": in float64, one of the two results is NaN or infinite where the other is not.")


def test_an_argument_is_gone_if_the_same_call_lacks_it_or_the_case_that_passes_changes_it():
    cause = {"fingerprint": "addmm(beta)", "kind": "argument", "before": "beta=-1", "after": "beta=1"}
    assert "`beta=-1` is gone" in tell("miscompile", diff(*ADDMM), cause=cause)
    assert "is gone" not in tell("miscompile", diff(*ADDMM), cause={**cause, "fingerprint": "mm(beta)"})
    computes = tell("miscompile", diff(*ADDMM, float64=0.5), cause={**cause, "computes": "neighbour"})
    assert computes.endswith("; that computes what eager mode gives with `beta=1` in place of `beta=-1`.")
    dropout = "torch.nn.functional.dropout"
    lines = (f"-c: f32[4] = {dropout}(a, p=0.1, training=False)", f"+c: f32[4] = {dropout}(b)")
    told = tell("miscompile", diff(*lines))
    assert "puts `F.dropout(…)` in place of `F.dropout(…, p=0.1, training=False)`" in told
    assert "`p=0.1` and `training=False` are gone" in told


def test_the_result_is_told_of_what_the_verdict_is_about():
    lines = ("-c: f32[4] = aten.clone.default(a)", "-return (c,)", "+return (a,)")
    details = diff(
        *lines, shares="output 0: its own became memory of input 0", changed="output 0: stride (2, 1) became (1, 2)"
    )
    assert tell("aliasing", details) == "`addmm` removes `clone(…)`: output 0 became memory of input 0."
    assert tell("metadata", details) == "`addmm` removes `clone(…)`: stride of output 0 (2, 1) became (1, 2)."
    assert tell("runtime_error", details) == "`addmm` removes `clone(…)`."


def test_many_operators_are_named_by_the_line_they_come_from():
    lines = [f"-c{n}: f32[4] = aten.op{n}.default(a)" for n in range(5)]
    added = "+c: f32[4] = aten.fused.default(a)"
    matched = [{"source": "model.py:3", "code": "y = f(x)", "nodes": []}]
    assert "in place of the 5 operators of `y = f(x)`" in tell("miscompile", diff(*lines, added, matched=matched))
    assert "in place of 5 operators (`op0`, `op1`, `op2` and 2 more)" in tell("miscompile", diff(*lines, added))


def test_a_diff_that_was_cut_tells_nothing():
    assert not tell("miscompile", diff(*ADDMM, "... and 9 more lines"))


OPERATOR = {"kind": "values", "way": "decomposition", "expected": "result 0[0] = -0.847297", "got": "result 0[0] = nan"}
FAKE = {"kind": "stride", "way": "fake", "expected": "result 0: (3, 1)", "got": "result 0: (1, 2)"}
KERNEL = {"kernel": "k", "code_generator": "C++", "fused": ["aten.exp.default@a.py:1#1"], "shown_in_float64": True}


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (OPERATOR, "Decomposed, `f` gives nan at [0]; the kernel that eager mode runs gives -0.8473 at [0]."),
        (FAKE, "On fake tensors the result of `f` has strides (1, 2); its kernel gives (3, 1)."),
        (KERNEL, "The C++ kernel generated for `exp` computes other values, in float64 too."),
        ({"kind": "lost", "call": "torch.add"}, "What `torch.add` does is lost in the traced graph."),
        ({"kind": "value", "expected": "-2", "got": "-1"}, "As dynamo evaluates it, `f` is -1; in Python it is -2."),
        ({"kind": "value", "expected": "object", "got": "tuple(?, ?)"}, ""),  # no text of the values was kept
        ({"kind": "path", "expected": "line 12", "got": "line 12"}, ""),
        ({"kind": "lost"}, ""),
        ({}, ""),
    ],
)
def test_other_evidence_has_forms(details: dict[str, Any], told: str):
    assert tell("miscompile", details, rewrite="f") == told


def test_a_suspect_has_no_mechanism():
    culprit = {**CULPRIT, "necessary": False, "details": diff(*ADDMM)}
    assert not tell_mechanism(report("miscompile", output(finding="far"), culprit=culprit))
    assert not tell_mechanism(report("miscompile", output(finding="far"), culprit=None))
