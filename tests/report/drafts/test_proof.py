"""What proves a culprit, in words: for the terminal, whatever kind of culprit it is."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from triage_reports import CULPRIT, output, report

from fuzzcompile.report.verdict_text import print_report

DETAILS = {
    "float64": 0.3,
    "native": 0.25,
    "native_noise": 1e-7,
    "changed": "output 0: stride (4, 1) became (1, 4)",
    "matched": [
        {"source": "model.py:14", "code": "y = f(x)[0]", "nodes": ["a", "b", "c", "d", "e"]},
        {"source": None, "code": None, "nodes": ["f"]},
    ],
    "diff": "\n".join(["@@ -1 +1 @@", *(f"-line[{n}]" for n in range(40))]),
}


def printed(of: dict[str, Any], *, proof: bool = True) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_report(console, of, proof=proof)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_rewrite_is_shown_with_its_lines_its_step_and_the_graph():
    text = printed(report("miscompile", output(), culprit={**CULPRIT, "details": DETAILS}))
    for part in (
        "matched model.py:14: y = f(x)[0]  (a, b, c, d and 1 more)",
        "matched no known line  (f)",
        "by 0.3 in float64, 0.25 natively (rounding alone: 1.0e-07)",
        "it changed: output 0: stride (4, 1) became (1, 4)",
        "-line[28]",
        "and 11 more lines (--json has all)",
    ):
        assert part in text, part
    assert "-line[29]" not in text


def test_triage_without_proof_stays_short():
    culprit = {**CULPRIT, "details": DETAILS}
    ablations = [{"toggle": "veto x", "repairs": True, "error": 0.0}]
    text = printed(report("miscompile", output(), culprit=culprit, ablations=ablations), proof=False)
    assert "matched" not in text and "-line" not in text and "veto x" not in text


def test_a_change_of_metadata_alone_is_no_number():
    details = {**DETAILS, "float64": 0.0, "native": 0.0}
    text = printed(report("metadata", output(finding="dtype"), culprit={**CULPRIT, "details": details}))
    assert "moves the result" not in text and "it changed: output 0: stride" in text


def test_an_operator_is_shown_with_what_was_expected():
    details = {"kind": "values", "backward": True, "inside": ["a.py", "b"], "expected": "1.0", "got": "", "more": None}
    text = printed(report("miscompile", output(), culprit={**CULPRIT, "stage": "decomposition", "details": details}))
    assert "should be: 1.0" in text and "kind: values" in text and "backward: yes" in text and "inside: a.py, b" in text
    assert "the compiler's" not in text and "None" not in text


def test_a_kernel_is_shown_as_code():
    details = {
        "kernel": "cpp_fused",
        "fused": ["aten.add.Tensor@model.py:1#1", "aten.mul.Tensor@model.py:2#1"],
        "kernel_source": "void f() {\n  [bold]x[/bold];\n}",
        "values": {"eager": 1.00000012, "compiled": 3},
    }
    text = printed(report("miscompile", output(), culprit={**CULPRIT, "stage": "codegen", "details": details}))
    assert "kernel: cpp_fused" in text
    assert "generated code:\n      void f() {\n        [bold]x[/bold];\n      }\n" in text
    assert "operators fused: aten.add.Tensor@model.py:1#1, aten.mul" in text
    assert "values: eager 1.00000012, compiled 3\n" in text


def test_the_ablation_table_has_a_row_for_each_toggle():
    ablations = [
        {"toggle": "veto [x]", "repairs": True, "error": 1.8e-7},
        {"toggle": "backend=eager", "repairs": False, "error": None, "non_finite": "inf"},
        {"toggle": "only y", "repairs": False, "error": None},
    ]
    text = printed(report("miscompile", output(), ablations=ablations))
    rows = [line.split() for line in text.splitlines() if line.endswith(("1.8e-07", "inf", " -"))]
    assert rows == [["[x]", "off", "yes", "1.8e-07"], ["backend=eager", "no", "inf"], ["only", "y", "on", "no", "-"]]
    layout = printed(report("metadata", output(finding="stride"), ablations=ablations))
    assert "bug gone" in layout and "error left" not in layout and "1.8e-07" not in layout


@pytest.mark.parametrize(
    ("necessary", "sufficient", "said"),
    [
        (True, True, ": the bug is gone without it; it alone shows the bug\n"),
        (False, False, ": the bug stays without it; it alone does not show the bug\n"),
        (True, None, ": the bug is gone without it\n"),
    ],
)
def test_what_was_shown_of_a_culprit_is_said_in_words(necessary, sufficient, said):
    culprit = {**CULPRIT, "necessary": necessary, "sufficient": sufficient, "siblings": []}
    text = printed(report("miscompile", output(), culprit=culprit))
    assert said in text and "necessary" not in text and "sufficient" not in text


def test_what_no_compile_and_no_replay_proves_is_a_suspect():
    unproved = {**CULPRIT, "necessary": False, "sufficient": None, "siblings": [], "step": None}
    text = printed(report("miscompile", output(), culprit=unproved, confidence="low"))
    assert "suspect: " in text and ": not proved: the bug stays without it\n" in text and "culprit: " not in text
    replayed = printed(report("miscompile", output(), culprit={**unproved, "step": 0.5}))
    assert "culprit: " in replayed and "not proved" not in replayed


def test_the_workaround_comes_with_its_price():
    workaround = {"how": "config.x = 1", "config": {}, "verified": True, "error": None, "cost_ratio": 1.234}
    text = printed(report("miscompile", output(), workaround=workaround))
    assert "workaround: config.x = 1  # run, and the bug is gone, 1.23 times the run time" in text
    assert "workaround" not in printed(report("miscompile", output()))
