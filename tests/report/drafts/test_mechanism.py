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
    moved = tell("miscompile", diff(*ADDMM, float64=0.5, reordered=True))
    assert moved.endswith(": the result holds the same numbers in another order.")
    # Of a step without bounds it is not known which of both sides is infinite.
    endless = tell("nonfinite", diff(*ADDMM, non_finite="inf"))
    assert endless.endswith(": the results of the two differ where they are infinite or NaN.")


def test_a_call_that_is_moved_before_another_is_told_with_the_dtypes_that_it_meets_there():
    lines = (
        "-joined: f32[2] = torch.cat([a, mask])",
        "-c: f32[2] = .relu(joined)",
        "+relu_1 = .relu(a)",
        "+relu_2 = .relu(mask)",
        "+c = torch.cat([relu_1, relu_2])",
    )
    told = tell("compile_error", diff(" a: f32[2] = input", " mask: b8[2] = input", *lines), rewrite="sink")
    assert told == "`sink` puts `.relu(…)` before `torch.cat(…)`, where it runs on bool and float32 instead of float32."
    same = tell("compile_error", diff(" a: f32[2] = input", " mask: f32[2] = input", *lines), rewrite="sink")
    assert same == "`sink` puts `.relu(…)` before `torch.cat(…)`."
    assert "changes the order" in tell(
        "miscompile", diff("-c: f32[2] = torch.cat([a, b])", "+c: f32[2] = torch.cat([b, a])")
    )


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
OWN = {"traced call": 2}
PLACE = {"where": [0, 2], "values": {"eager": -1.2092857, "compiled": -4.3615303}}
FUNCTIONAL = {"kind": "values", "differs": "input 0", "written through": "d"}
KERNEL = {"kernel": "k", "code_generator": "C++", "fused": ["aten.exp.default@a.py:1#1"], "shown_in_float64": True}
FUSED = {**KERNEL, **PLACE, "dependences": "unknown"}
GENERATED = "The C++ kernel generated for `exp` computes other values"


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (OPERATOR, "Decomposed, `f` gives nan at [0]; the kernel that eager mode runs gives -0.8473 at [0]."),
        (
            {**OPERATOR, "kind": "numbers", "expected": "result 0[2] = 1", "got": "result 0[2] = 0"},
            "Decomposed, `f` draws other numbers than the kernel that eager mode runs: 0 at [2] instead of 1 at [2].",
        ),
        (
            {**OPERATOR, "kind": "numbers", "expected": "the state of the generator after it", "got": "another state"},
            "Decomposed, `f` leaves the random generator in another state than the kernel that eager mode runs.",
        ),
        (FAKE, "On fake tensors the result of `f` has strides (1, 2); its kernel gives (3, 1)."),
        (KERNEL, "The C++ kernel generated for `exp` computes other values, in float64 too."),
        (FUSED, f"{GENERATED} (-4.362 for -1.209 at [0, 2]); with a kernel for each operator it is right."),
        ({**KERNEL, **PLACE, "shown_in_float64": False}, f"{GENERATED} (-4.362 for -1.209 at [0, 2])."),
        ({**KERNEL, "shown_in_float64": False}, ""),
        (
            FUNCTIONAL,
            "Made functional by AOTAutograd, dynamo's graph gives another input 0 than with its writes in place; where "
            "eager mode makes the call of `add_`, the program is right.",
        ),
        (
            {"kind": "regenerated", "way": "as_strided"},
            "`f` makes an output anew that is a view, in place of the one that the graph computes, and gives another.",
        ),
        (
            {"kind": "setting", "expected": "", "got": ""},
            "What `f` sets is not the same as dynamo traces it: where Python makes that call, the program is right.",
        ),
        ({"kind": "lost", "call": "torch.add"}, "What `torch.add` does is lost in the traced graph."),
        ({"kind": "value", "expected": "-2", "got": "-1", **OWN}, "Behind `f`, dynamo has -1, where Python has -2."),
        ({"kind": "value", "expected": "?", "got": "tuple(?, ?)", **OWN}, ""),  # no text of the values was kept
        (
            {"kind": "path", "expected": "true", "got": "false", **OWN},
            "As dynamo evaluates it, `f` is false; in Python it is true.",
        ),
        ({"kind": "path", "expected": "line 9", "got": "line 12", **OWN}, ""),
        ({"kind": "path", "expected": "true", "got": "false"}, ""),  # it may be of another call
        (
            {"kind": "tangent", "shape": [1, 2], "strides": [5, 5]},
            "`f` copies a gradient of shape (1, 2) into strides (5, 5), which changes its values.",
        ),
        (
            {"kind": "check", "way": "decomposition", "expected": "IndexError: out of range", "got": "no error"},
            "Decomposed, `f` has no error; the kernel that eager mode runs raises IndexError: out of range.",
        ),
        ({"kind": "gradient", "expected": "tensor", "got": "tensor (with gradient)"}, ""),
        ({"kind": "lost"}, ""),
        ({}, ""),
    ],
)
def test_other_evidence_has_forms(details: dict[str, Any], told: str):
    stage = {"stage": "functionalization", "nodes": ["add__1"]} if details is FUNCTIONAL else {"stage": "codegen"}
    culprit = {**CULPRIT, **stage, "rewrite": "f", "details": details}
    assert tell_mechanism(report("miscompile", output(finding="far"), culprit=culprit)) == told
    if details is FUNCTIONAL:  # says nothing of gradients
        assert not tell_mechanism(report("wrong_gradient", output(finding="far"), culprit=culprit))


def test_numbers_drawn_again_by_a_part_of_a_graph_are_counted():
    draws = {"joint graph draws": {"aten.rand.default": 1}, "its parts draw": {"aten.rand.default": 2}}
    culprit = {**CULPRIT, "stage": "partition", "rewrite": "f", "details": {"kind": "numbers", **draws}}
    told = tell_mechanism(report("miscompile", output(finding="far"), culprit=culprit))
    assert told == (
        "The joint graph has 1 `aten.rand.default`; the parts that `f` cuts it into have 2 `aten.rand.default`."
    )


def test_a_lowering_and_a_view_that_a_library_reads_are_named():
    lowered = {**CULPRIT, "stage": "lowering", "rewrite": "argmax", "details": {**KERNEL, **PLACE}}
    told = tell_mechanism(report("miscompile", output(finding="far"), culprit=lowered))
    assert told == "Lowered by Inductor, `argmax` gives other values (-4.362 for -1.209 at [0, 2]), in float64 too."
    read = {**CULPRIT, "stage": "codegen", "rewrite": "view", "details": {"kernel": "extern_kernels.mm", **PLACE}}
    told = tell_mechanism(report("miscompile", output(finding="far"), culprit=read))
    assert told.endswith("from the view that `view` makes; from a copy of it, it is right.")
    assert not tell_mechanism(report("metadata", output(finding="far"), culprit=lowered))


@pytest.mark.parametrize(
    ("guard", "told"),
    [
        ("not asked for", "Dynamo asks for no `f` guard on what changes between the calls: `scale` (2.0, then 0.5)."),
        ("it holds", "Dynamo's `f` guard holds, whatever changes between the calls: `scale` (2.0, then 0.5)."),
        (
            "TYPE_MATCH in its place",
            "Dynamo makes `TYPE_MATCH` of its `f` guard, which lets pass what changes between the calls: `scale` "
            "(2.0, then 0.5).",
        ),
    ],
)
def test_the_guard_that_is_missing_is_told(guard: str, told: str):
    changes = ["scale: 2.0, then 0.5 (of 4 changes before that call)"]
    assert tell("stale", {"kind": "guard", "between_calls": changes, "guard": guard}, rewrite="f") == told


RAISED = [{"source": "torch/a.py", "line": 3, "function": "meta"}, {"source": "b.py", "line": 1, "function": "_fn"}]


def test_an_error_is_told_by_what_raised_it_and_what_that_was_given():
    error = {"error": "LoweringException: RuntimeError: not contiguous", "raised": RAISED}
    told = tell("compile_error", {**error, "given": ["self: float32 (3, 4)", "p: 2.0"]}, rewrite="pdist")
    assert told == (
        "`RuntimeError` is raised in `meta` (torch/a.py:3) with self: float32 (3, 4), p: 2.0, called from `_fn`, for "
        "`pdist`."
    )
    alone = {"kind": "regenerated", "raised": RAISED[:1]}
    told = tell("runtime_error", alone, rewrite="meta", detail="AssertionError: other shape")
    assert told == "`meta` makes an output anew that is a view, and raises AssertionError: other shape."
    told = tell("runtime_error", {"raised": RAISED[:1]}, rewrite="meta", detail="AssertionError: other shape")
    assert told == "`AssertionError` is raised in `meta` (torch/a.py:3)."


def test_code_that_does_not_compile_needs_no_proof():
    details = {**KERNEL, "error": "CppCompileError: no matching function", "operators": ["maximum"]}
    culprit = {**CULPRIT, "necessary": None, "details": details}
    told = tell_mechanism(report("compile_error", output(finding="far"), culprit=culprit))
    assert told == "The C++ code written for `maximum` does not compile: no matching function."


def test_a_suspect_has_no_mechanism():
    culprit = {**CULPRIT, "necessary": False, "details": diff(*ADDMM)}
    assert not tell_mechanism(report("miscompile", output(finding="far"), culprit=culprit))
    assert not tell_mechanism(report("miscompile", output(finding="far"), culprit=None))
