"""What a Report says, and that it keeps all of the contract's JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from fuzzcompile.front.api.report import Report
from fuzzcompile.model.errors import UsageError


def answer(**changes: Any) -> dict[str, Any]:
    culprit = {"stage": "joint_graph", "pass": "p", "rewrite": "planted_sub", "nodes": [], "source": "plant.py"}
    culprit |= {"line": 9, "family": "sub", "site": "m.py:3 #1", "step": 1.0, "necessary": True, "sufficient": None}
    output = {"name": "out<0>", "finding": "far", "max_abs_error_eager": 0.0, "max_abs_error_compiled": 2.5}
    output |= {"within_default_tolerance": False, "torch_same": False, "where": None, "at": {}, "detail": ""}
    return {
        "schema": 1,
        "case": "Net",
        "torch": "2.13.0",
        "device": "cpu",
        "verdict": "miscompile",
        "is_bug": True,
        "confidence": "high",
        "detail": "",
        "evidence": {"outputs": [output], "notes": ["a note"]},
        "culprit": culprit,
        "contributors": [],
        "changed_bits": [],
        "ablations": [],
        "workaround": {"how": "h", "config": {"pattern_matcher": False}, "verified": True, "error": None},
        "signature": "joint_graph:plant.py:sub",
        "severity": "wrong",
        "where": {"process": "in place", "why": "it holds a lock"},
        **changes,
    }


def test_a_report_has_the_answer_as_attributes():
    report = Report.from_json(answer())
    assert (report.verdict, report.is_bug, report.severity, report.confidence) == ("miscompile", True, "wrong", "high")
    assert report.culprit is not None and report.culprit["rewrite"] == "planted_sub"
    assert report.workaround is not None and report.workaround["config"] == {"pattern_matcher": False}
    assert (report.where, report.why_in_place, report.notes) == ("in place", "it holds a lock", ("a note",))


def test_json_keeps_everything():
    report = Report.from_json(json.dumps(answer()))
    assert report.to_json() == answer() and Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["no JSON", "[]", {"verdict": None, "error": "could not be judged"}])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(UsageError, match="takes the JSON of a report"):
        Report.from_json(text)


def test_the_text_is_one_screen_with_culprit_and_advice():
    text = str(Report.from_json(answer()))
    assert text.startswith("Net: miscompile (BUG") and "planted_sub" in text and "what to do:" in text
    assert "judged in place, in this process: it holds a lock" in text
    assert len(text.splitlines()) < 25 and Report.from_json(answer()).__rich__().plain == text


def test_a_notebook_gets_html_that_stands_alone():
    html = Report.from_json(answer())._repr_html_()
    assert "miscompile" in html and "planted_sub" in html and "out&lt;0&gt;" in html and "`" not in html
    assert not [tag for tag in ("<script", "<style", "<link", "http", "src=") if tag in html]


def test_neither_the_report_nor_the_plugin_imports_torch():
    program = (
        "import sys; import fuzzcompile, fuzzcompile.front.pytest_plugin; early = {'torch', 'rich'} & "
        "set(sys.modules); "
        "from fuzzcompile import Report; print(early, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["set()", "False"]
