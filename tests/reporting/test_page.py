"""The page of HTML: what it holds, that it stands alone, and that nothing in it can break it."""

from __future__ import annotations

import re
from typing import Any

from pages import Reader
from triage_reports import CULPRIT, output, report

from fuzzcompile.reporting.page import page_of

ENVIRONMENT = {"torch": "2.13.0", "python": "3.11.7", "cpu": "Xeon", "host": "secret-host", "threads": 8}
DIFF = "@@ -1,2 +1,2 @@\n x: f32[2] = input\n-a: f32[2] = aten.sin.default(x)\n+b: f32[2] = aten.cos.default(x)"
DETAILS = {
    "direction": "backward",
    "float64": 0.3,
    "native": 0.25,
    "native_noise": 1e-7,
    "changed": None,
    "matched": [{"source": "model.py:14", "code": "y = x.sin() < 2", "nodes": ["a", "lt"]}],
    "diff": DIFF,
}
BLAMED = {**CULPRIT, "details": DETAILS, "siblings": ["_sfdp_pattern_3"]}
ROUNDING = {"float64": 1e-16, "native": 2e-8}
ROUNDS = {**CULPRIT, "rewrite": "addmm", "stage": "post_grad", "site": None, "details": ROUNDING}
SOURCE = "void kernel() {\n  <int>;\n}"
KERNEL = {**CULPRIT, "stage": "codegen", "rewrite": "cpp_fused_add", "details": {"source": SOURCE}}


def read(of: dict[str, Any], **environment: Any) -> Reader:
    return Reader(page_of(of, {**ENVIRONMENT, **environment}, name="m.py"))


def bug(**fields: Any) -> dict[str, Any]:
    ablations = [
        {"toggle": "veto _sfdp_pattern_28", "repairs": True, "error": 1e-7},
        {"toggle": "backend=aot_eager", "repairs": False, "error": None, "non_finite": "inf"},
    ]
    workaround = {"how": "config.x = 1", "config": {"x": 1}, "verified": True, "error": 1e-7, "cost_ratio": 1.25}
    given = {"culprit": BLAMED, "ablations": ablations, "changed_bits": [ROUNDS, BLAMED], "workaround": workaround}
    return report("miscompile", output(finding="wrong", max_abs_error_compiled=0.5), **{**given, **fields})


def test_everything_that_a_maintainer_asks_for_is_there():
    text = read(bug()).text
    for part in (
        "model: miscompile", "confidence high", "compiled computes wrong values", "out0",
        "_sfdp_pattern_28_inference", "torch/_inductor/fx_passes/fuse_attention.py:66", "model.py:14 #1",
        "0.3 in float64, 0.25 natively (rounding alone: 1.0e-07)", "with _sfdp_pattern_3, which takes its place",
        "model.py:14: y = x.sin() < 2 (a, lt)", "-a: f32[2] = aten.sin.default(x)", "+b: f32[2] = aten.cos.default(x)",
        "veto _sfdp_pattern_28 yes 1.0e-07", "backend=aot_eager no inf",
        "config.x = 1 # run, and the bug is gone, 1.25 times the run time", "addmm post_grad", "PyTorch 2.13.0",
        "Python 3.11.7", "signature",
    ):  # fmt: skip
        assert part in text, part
    assert "secret-host" not in text


def test_it_stands_alone():
    page = page_of(bug(), ENVIRONMENT, name="m.py")
    assert not re.search(r"https?:|src=|href=|<script|@import|url\(", page)
    assert "prefers-color-scheme: dark" in page
    reader = Reader(page)
    assert reader.open == [] and page.startswith("<!DOCTYPE html>")


def test_what_the_report_says_is_text_and_no_markup():
    evil = "<script>alert(1)</script>"
    matched = [{"source": evil, "code": evil, "nodes": [evil]}]
    culprit = {**BLAMED, "rewrite": evil, "details": {**DETAILS, "matched": matched, "diff": f"+{evil}", "more": evil}}
    reader = read(bug(case=evil, detail=evil, culprit=culprit, changed_bits=[culprit]), python=evil)
    assert "script" not in [tag for tag, _ in reader.tags]
    assert reader.text.count(evil) >= 8


def test_bars_are_as_long_as_the_steps_and_the_culprits_is_marked():
    reader = read(bug())
    widths = [float(re.findall(r"width: ([\d.]+)%", given["style"])[0])  # float64 and native of each rewrite
              for tag, given in reader.tags if (given.get("class") or "").startswith("bar")]  # fmt: skip
    assert len(widths) == 4
    tiny, native, blamed, _ = widths
    assert 0 < tiny < native < blamed <= 100
    classes = [given.get("class") for tag, given in reader.tags if (given.get("class") or "").startswith("step")]
    assert classes == ["step", "step blamed"]


def test_numbers_that_json_cannot_hold_fill_the_bar():
    infinite = {**BLAMED, "details": {**DETAILS, "float64": None, "native": None, "non_finite": "inf"}}
    nan = {**BLAMED, "details": {**DETAILS, "native": None, "non_finite": "nan"}}
    reader = read(bug(culprit=infinite, changed_bits=[infinite, nan]))
    assert "inf in float64" in reader.text and "nan%" not in str(reader.tags)
    assert "width: 100%" in str(reader.tags)


def test_a_kernel_is_shown_as_it_was_generated():
    reader = read(bug(culprit=KERNEL, changed_bits=[]))
    assert "void kernel() { <int>; }" in reader.text
    assert "No rewrite of a graph moved a bit" in reader.text


def test_what_is_not_known_is_said_and_not_claimed():
    bare = {**CULPRIT, "necessary": None, "step": None, "source": None, "site": None, "pass": None}
    text = read(bug(culprit=bare, ablations=[], workaround=None, changed_bits=[])).text
    assert "necessary (gone without it) not run" in text
    assert "no ablation was run" in text and "Workaround" not in text and "None" not in text
    assert "Not attributed" in read(bug(culprit=None)).text


def test_no_bug_has_a_page_too():
    text = read(report("rounding", output(), changed_bits=[ROUNDS])).text
    assert "No bug" in text and "addmm" in text and "Culprit" not in text
    assert "rounding" in text


def test_many_rewrites_and_outputs_are_cut():
    evidence = {"outputs": [output(f"out{i}") for i in range(20)]}
    text = read({**bug(changed_bits=[ROUNDS] * 70), "evidence": evidence}).text
    assert "10 more are left out" in text and "8 more outputs are left out" in text
