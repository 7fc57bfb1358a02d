"""`--fail-on`: only a bug that is bad enough gives the exit status 1; a file that could not be judged still counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import call, sentence

from fuzzcompile.diagnosis.worker.file_triage import FileAnswer
from fuzzcompile.front.cli.triage import compute_status
from fuzzcompile.model.severity import Severity


def answer(verdict: str, status: int = 1) -> FileAnswer:
    return FileAnswer(Path("c.py"), {"verdict": verdict, "is_bug": True}, status=status)


@pytest.mark.parametrize(
    ("least", "verdicts", "status"),
    [
        (None, ["accepts_invalid"], 1),
        (Severity.SILENT, ["accepts_invalid", "aliasing", "compile_error"], 0),
        (Severity.ERROR, ["accepts_invalid", "crash"], 1),
        (Severity.ACCEPTS_INVALID, ["accepts_invalid"], 1),
        (Severity.LAYOUT, ["miscompile"], 1),
    ],
)
def test_what_is_bad_enough(least, verdicts, status):
    assert compute_status([answer(verdict) for verdict in verdicts], least) == status


def test_what_could_not_be_judged_or_is_known(tmp_path):
    unjudged = FileAnswer(Path("c.py"), None, "no memory", 3)
    assert compute_status([unjudged, answer("miscompile")], Severity.SILENT) == 3
    assert compute_status([answer("miscompile", status=0)], Severity.SILENT) == 0, "the baseline knows it"


@pytest.mark.parametrize("command", ["run", "triage"])
def test_a_severity_that_there_is_not(command, capsys):
    assert call(command, "--fail-on", "terrible") == 2
    assert "silent" in sentence(capsys)
