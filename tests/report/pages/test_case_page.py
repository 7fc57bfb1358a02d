"""The page of HTML: what it holds, that it stands alone, and that nothing in it can break it."""

from __future__ import annotations

import re
from typing import Any

from page_reader import Reader
from triage_reports import CULPRIT, output, report

from fuzzcompile.report.pages.case_page import render_case_page

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
    return Reader(render_case_page(of, {**ENVIRONMENT, **environment}, name="m.py"))


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
        "model: miscompile", "confidence high", "Attention gives wrong values under torch.compile", "out0",
        "_sfdp_pattern_28_inference", "torch/_inductor/fx_passes/fuse_attention.py:66", "model.py:14 #1",
        "0.3 in float64, 0.25 natively (rounding alone: 1.0e-07)", "and _sfdp_pattern_3, which takes its place",
        "model.py:14: y = x.sin() < 2 (a, lt)", "-a: f32[2] = aten.sin.default(x)", "+b: f32[2] = aten.cos.default(x)",
        "_sfdp_pattern_28 off yes 1.0e-07", "backend=aot_eager no inf",
        "config.x = 1 # run, and the bug is gone, 1.25 times the run time", "addmm post_grad",
        "float64 1.0e-16, native 2.0e-08", "PyTorch 2.13.0", "Python 3.11.7", "signature",
    ):  # fmt: skip
        assert part in text, part
    assert "secret-host" not in text


def test_it_stands_alone():
    page = render_case_page(bug(), ENVIRONMENT, name="m.py")
    assert not re.search(r"https?:|src=|href=|<script|@import|url\(", page)
    assert "color-scheme: light dark" in page
    reader = Reader(page)
    assert reader.open == [] and page.startswith("<!DOCTYPE html>")


def test_what_the_report_says_is_text_and_no_markup():
    evil = "<script>alert(1)</script>"
    matched = [{"source": evil, "code": evil, "nodes": [evil]}]
    culprit = {**BLAMED, "rewrite": evil, "details": {**DETAILS, "matched": matched, "diff": f"+{evil}", "more": evil}}
    reader = read(bug(case=evil, detail=evil, culprit=culprit, changed_bits=[culprit]), python=evil)
    assert "script" not in [tag for tag, _ in reader.tags]
    assert reader.text.count(evil) >= 8


def dots(reader: Reader, kind: str) -> list[float]:
    """How far along their axes the dots of a kind stand, in percent."""
    return [float(re.findall(r"left: ([\d.]+)%", given["style"])[0]) for tag, given in reader.tags
            if tag == "span" and given.get("class") == f"dot {kind}" and given.get("style")]  # fmt: skip


def test_dots_stand_where_the_steps_are_and_the_culprits_is_marked():
    reader = read(bug())
    tiny, blamed = dots(reader, "exact")
    small, native = dots(reader, "native")
    assert 0 <= tiny < small < native < blamed <= 100
    rows = [given.get("class") for tag, given in reader.tags if (given.get("class") or "").startswith("row")]
    assert rows.count("row blamed") == 1 and "the culprit" in reader.text


def test_numbers_that_json_cannot_hold_stand_at_the_end_of_the_axis():
    infinite = {**BLAMED, "details": {**DETAILS, "float64": None, "native": None, "non_finite": "inf"}}
    nan = {**BLAMED, "details": {**DETAILS, "native": None, "non_finite": "nan"}}
    reader = read(bug(culprit=infinite, changed_bits=[infinite, nan]))
    assert "inf in float64" in reader.text and "nan%" not in str(reader.tags)
    assert dots(reader, "native") == [100.0, 100.0]


def test_a_kernel_is_shown_as_it_was_generated():
    reader = read(bug(culprit=KERNEL, changed_bits=[]))
    assert "void kernel() { <int>; }" in reader.text
    assert "No rewrite of a graph moved a bit" in reader.text


def test_what_is_not_known_is_said_and_not_claimed():
    bare = {**CULPRIT, "necessary": None, "step": None, "source": None, "site": None, "pass": None}
    text = read(bug(culprit=bare, ablations=[], workaround=None, changed_bits=[])).text
    assert "nothing: no such compile was run" in text
    assert "What was tried" not in text and "Workaround" not in text and "None" not in text
    assert "Not attributed" in read(bug(culprit=None)).text


def test_no_bug_has_a_page_too():
    text = read(report("rounding", output(), changed_bits=[ROUNDS])).text
    assert "no bug" in text and "addmm" in text and "Culprit" not in text
    assert "rounding" in text


def test_many_rewrites_and_outputs_are_cut():
    evidence = {"outputs": [output(f"out{i}") for i in range(20)]}
    text = read({**bug(changed_bits=[ROUNDS] * 70), "evidence": evidence}).text
    assert "10 more are left out" in text and "8 more outputs are left out" in text


def error_map(**fields: Any) -> dict[str, Any]:
    rows = [[0.0, 1e-7], [None, 0.5]]
    drawn = {"shape": [2, 2], "row_dims": 1, "rows": [0, 1, 2], "columns": [0, 1, 2]}
    return {**drawn, "eager": [[0.0, 1e-7], [1e-7, 0.0]], "compiled": rows, **fields}


def test_the_heat_map_says_what_its_cells_are():
    shown = output(finding="far", max_abs_error_compiled=0.5, where=[1, 1], error_map=error_map())
    reader = read(report("miscompile", shown))
    assert "eager: at most 1.0e-07" in reader.text and "compiled: not finite" in reader.text
    assert "down, dimension 0 (2); across, dimension 1 (2); one cell is one element" in reader.text
    kinds = [given["class"] for tag, given in reader.tags if tag == "path"]
    assert {"h0", "h7", "bad"} <= set(kinds)
    (eager, compiled) = [given for tag, given in reader.tags if given.get("class") == "worst"]
    assert (eager["x"], eager["y"]) == (compiled["x"], compiled["y"]) == ("1", "1")


def test_gathered_cells_are_said_to_be_gathered():
    edges = {"shape": [3, 4, 64], "row_dims": 2, "rows": [0, 6, 12], "columns": [0, 32, 64]}
    shown = output(finding="far", error_map=error_map(**edges), where=[2, 1, 40])
    reader = read(report("miscompile", shown))
    assert "dimensions 0 to 1, one behind the other (12)" in reader.text
    assert "the largest error of up to 6 × 32 elements" in reader.text
    assert [(given["x"], given["y"]) for tag, given in reader.tags if given.get("class") == "worst"] == [("1", "1")] * 2


def test_numbers_that_mean_nothing_for_a_layout_are_left_out():
    stride = output(finding="stride", detail="eager (4, 1), compiled (1, 2)", max_abs_error_compiled=0.0)
    text = read(report("metadata", stride, ablations=[{"toggle": "backend=eager", "repairs": True, "error": 0.0}])).text
    assert "strides: eager (4, 1), compiled (1, 2)" in text
    assert not any(word in text for word in ("noise floor", "largest error", "How far each rewrite"))


def test_the_source_stands_there_with_the_culprits_lines_marked():
    program = "import torch\n" * 13 + "y = x.sin() < 2\nz = '<b>'\n"
    reader = Reader(render_case_page(bug(), ENVIRONMENT, name="m.py", source=program))
    lines = [given["class"] for tag, given in reader.tags if (given.get("class") or "").split(" ")[0] == "line"]
    assert lines == ["line"] * 13 + ["line marked", "line"] and "'<b>'" in reader.text


def test_no_path_of_this_machine_and_no_backtick_is_left():
    path = "/home/someone/project/model.py"
    matched = [{"source": f"{path}:14", "code": None, "nodes": []}]
    culprit = {**BLAMED, "site": f"{path}:14 #1", "details": {**DETAILS, "matched": matched}}
    shown = bug(detail=f"it raises `Error` in {path}", culprit=culprit)
    page = render_case_page(shown, ENVIRONMENT, name=path, source=f'open("{path}") //2\n')
    text = Reader(page).text
    assert "/home/" not in page and "`" not in text and "model.py:14" in text and "//" in text


def test_an_error_has_no_section_on_values_or_steps():
    raises = bug(
        detail="CompileError: no", evidence={"outputs": []}, changed_bits=[{**BLAMED, "details": {}, "step": None}]
    )
    raises |= {"verdict": "compile_error", "evidence": {"outputs": []}}
    text = read(raises).text
    assert "fails to compile: CompileError: no" in text and "Culprit" in text
    assert not any(words in text for words in ("differ ", "What differs", "How far each rewrite", "not replayed"))
