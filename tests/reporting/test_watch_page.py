"""The page on a script that was watched."""

from __future__ import annotations

import re

from pages import Reader
from triage_reports import output, report

from fuzzcompile.reporting.charts import Panel, Series, chart_or_reason
from fuzzcompile.reporting.watch_page import Plot, Step, WatchPage

ERRORS = Panel("error", [Series("made", [1e-7, 0.1, None]), Series("rounding", [1e-7, 1e-7, 1e-7], is_limit=True)])
CHART = chart_or_reason([10, 20, 30], [ERRORS], axis="step", about="errors", highlight=(1, "first wrong step: 20"))


def page(**fields):
    given = {
        "script": "train.py", "verdict": "miscompile", "is_fine": False, "advice": "report it",
        "sentences": ["Step 20 is off by 0.1.", "Rounding <explains> 1e-7."], "columns": ["step", "made"],
        "plots": [Plot("Errors made", CHART, "relative")], "remarks": ["1 sample was skipped"],
        "steps": [Step(["10", "1.0e-07"]), Step(["20", "0.1"], is_wrong=True)],
        "triages": [("step 20", "steps/20.py", report("miscompile", output(finding="wrong")))],
        "environment": {"torch": "2.13.0", "user": "secret"},
    }  # fmt: skip
    return WatchPage(**{**given, **fields}).html()


def test_the_page_stands_alone_and_says_what_was_seen():
    reader = Reader(page())
    assert not reader.open and reader.stands_alone
    for part in ("train.py: miscompile", "Step 20 is off by 0.1. Rounding <explains> 1e-7.", "What to do: report it.",
                 "Errors made", "first wrong step: 20", "1 sample was skipped", "Triage: step 20", "PyTorch 2.13.0",
                 "fuzzcompile minimize steps/20.py"):  # fmt: skip
        assert part in reader.text, part
    assert "secret" not in reader.text


def test_the_wrong_step_is_marked():
    assert re.findall(r'<tr class="blamed"><td>(\d+)</td>', page()) == ["20"]


def test_a_script_without_samples_has_a_page_as_well():
    text = Reader(page(steps=[], plots=[], triages=[], remarks=[], environment=None)).text
    assert "No step was sampled." in text and "Triage" not in text
