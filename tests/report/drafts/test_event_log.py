"""The log of events: a line of JSON each, there as soon as it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.report.output_files import EventLog


def test_a_line_is_there_at_once_and_another_log_goes_on_behind_it(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.write("case_judged", {"verdict": "équal\n", "finding": None})
        first = json.loads(path.read_text())
    with EventLog(path) as log:
        log.write("campaign_finished", {})
    assert first["event"] == "case_judged" and first["verdict"] == "équal\n" and first["time"].endswith("+00:00")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["case_judged", "campaign_finished"]


def test_a_log_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match="Is a directory; name another file for --log"):
        EventLog(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said():
    log = EventLog(Path("/dev/full"))
    with pytest.raises(EnvironmentUnfit, match="No space left"):
        log.write("case_judged", {})
