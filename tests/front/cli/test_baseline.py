"""Known bugs by signature: which files are baselines, and what is in them."""

from __future__ import annotations

import json

import pytest
from triage_reports import SIGNATURE, report

from fuzzcompile.front.known_bugs import Baseline
from fuzzcompile.model.errors import UsageError

OTHER = "runtime:RuntimeError:tensor 'N' has N dims # not a comment"


def test_json_lines_of_an_earlier_run_are_a_baseline(tmp_path):
    unjudged = {"schema": 1, "case": "x", "verdict": None, "is_bug": False, "error": "no"}
    path = tmp_path / "known.jsonl"
    path.write_text(
        "\n".join(json.dumps(said) for said in (report("miscompile"), report("rounding"), unjudged)) + "\n\n"
    )
    assert Baseline.read(path).signatures == {SIGNATURE}


def test_a_list_of_signatures_is_a_baseline(tmp_path):
    path = tmp_path / "known.txt"
    path.write_text(f"# known since May\n\n  {SIGNATURE}  \r\n{OTHER}\n", encoding="utf-8-sig")
    assert Baseline.read(path).signatures == {SIGNATURE, OTHER}


def test_only_bugs_of_that_signature_are_known(tmp_path):
    path = tmp_path / "known.txt"
    path.write_text(SIGNATURE)
    baseline = Baseline.read(path)
    assert baseline.knows(report("miscompile"))
    assert not baseline.knows(report("miscompile", signature=OTHER))
    assert not baseline.knows(report("rounding")) and not baseline.knows(None)


def test_an_empty_file_knows_nothing(tmp_path):
    (tmp_path / "empty").touch()
    assert not Baseline.read(tmp_path / "empty").signatures


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"no signature", b"{not json", b"[1]", b'{"a": 1}', b'{"verdict": "x", "signature": 3}'],
)
def test_what_is_no_baseline_is_refused(content, tmp_path):
    path = tmp_path / "known"
    path.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        Baseline.read(path)
    assert "known" in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="Cannot read the baseline"):
        Baseline.read(tmp_path / "none")
    with pytest.raises(UsageError, match="Cannot read the baseline"):
        Baseline.read(tmp_path)
