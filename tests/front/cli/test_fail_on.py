"""`--fail-on`: only a bug that is asked for gives the exit status 1; a file that could not be judged still counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import call, sentence

from fuzzcompile.diagnosis.worker.file_triage import FileAnswer
from fuzzcompile.front.cli.triage import compute_status
from fuzzcompile.model.severity import FAIL_ON, FailOn, Severity, rate_effect, rate_severity


def answer(verdict: str, status: int = 1) -> FileAnswer:
    return FileAnswer(Path("c.py"), {"verdict": verdict, "is_bug": True}, status=status)


@pytest.mark.parametrize(
    ("word", "verdicts", "status"),
    [
        (None, ["accepts_invalid"], 1),
        ("silent", ["accepts_invalid", "aliasing", "compile_error"], 0),
        ("silent", ["eager_wrong"], 1),
        ("error", ["accepts_invalid", "crash"], 1),
        ("accepts_invalid", ["accepts_invalid"], 1),
        ("layout", ["miscompile"], 1),
        ("eager_wrong", ["miscompile", "wrong_gradient", "crash"], 0),
        ("eager_wrong", ["miscompile", "eager_wrong"], 1),
        ("miscompile", ["eager_wrong"], 0),
        ("miscompile", ["miscompile"], 1),
    ],
)
def test_what_counts(word, verdicts, status):
    fail_on = None if word is None else FailOn.parse(word)
    assert compute_status([answer(verdict) for verdict in verdicts], fail_on) == status


def test_what_a_case_has_opted_into_counts_by_what_it_does():
    opted = FileAnswer(Path("c.py"), {"verdict": "miscompile", "is_bug": True, "opt_in": ["freezing"]}, status=1)
    assert rate_severity(opted.report) is Severity.OPT_IN and rate_effect(opted.report) is Severity.SILENT
    assert compute_status([opted], FailOn.parse("silent")) == 1
    assert not FailOn.parse("silent").counts("miscompile", Severity.OPT_IN), "as in a campaign, which opted in itself"
    assert FailOn.parse("opt_in").counts("miscompile", Severity.OPT_IN)
    minor = {"verdict": "accepts_invalid", "is_bug": True, "opt_in": ["freezing"]}
    assert rate_severity(minor) is Severity.ACCEPTS_INVALID


def test_a_word_is_a_severity_or_the_verdict_of_a_bug():
    assert {"silent", "layout", "eager_wrong", "miscompile"} <= set(FAIL_ON)
    assert not {"equal", "rounding"} & set(FAIL_ON)


def test_what_could_not_be_judged_or_is_known(tmp_path):
    unjudged = FileAnswer(Path("c.py"), None, "no memory", 3)
    assert compute_status([unjudged, answer("miscompile")], FailOn.parse("silent")) == 3
    assert compute_status([answer("miscompile", status=0)], FailOn.parse("silent")) == 0, "the baseline knows it"


@pytest.mark.parametrize("command", ["run", "triage"])
def test_a_word_that_there_is_not(command, capsys):
    assert call(command, "--fail-on", "terrible") == 2
    said = sentence(capsys)
    assert "silent" in said and "eager_wrong" in said
