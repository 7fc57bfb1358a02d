"""What the GitHub Action says of a triage."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "action_summary.py"
SPEC = importlib.util.spec_from_file_location("action_summary", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
action_summary = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(action_summary)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    common = {"event": "case_judged", "severity": None, "signature": None, "known": None, "error": None}
    bug = {"verdict": "miscompile", "is_bug": True, "severity": "wrong_values"}
    lines = [
        {"event": "triage_started", "cases": []},
        {**common, "case": "fine.py", "verdict": "equal", "is_bug": False},
        {**common, "case": "a|b <c>.py", "verdict": None, "is_bug": None, "error": "broken\nin two lines"},
        {**common, "case": "old.py", **bug, "known": "F1"},
        {**common, "case": "new bug.py", **bug},
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_only_new_bugs_get_a_page(events):
    assert action_summary.main(["bugs", str(events)]) == "new bug.py\0"
    assert action_summary.main(["bugs", str(events.with_name("none"))]) == ""


def test_new_bugs_stand_first_and_no_name_breaks_the_table(events):
    text = action_summary.main(["summary", str(events), "1"])
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row.split(" | ")[0] for row in rows] == ["| new bug.py", "| old.py", "| fine.py", "| a\\|b &lt;c>.py"]
    assert "not in the baseline" in text and "(known)" in rows[1] and "not judged: broken in two lines" in rows[3]
