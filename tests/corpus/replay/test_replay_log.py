"""`replay --log`: an event for each finding that was run again."""

from __future__ import annotations

import hashlib
import json

import pytest

from fuzzcompile.corpus.records import Campaign, CaseRecord, Reproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import main

REPORT = {
    "schema": 1, "torch": "2.13.0+cpu", "device": "cpu", "verdict": "miscompile", "is_bug": True, "confidence": "high",
    "signature": "post_grad:torch/x.py:y", "culprit": None, "evidence": {"outputs": []},
}  # fmt: skip
FIXED = "print('BUG: compiled is wrong' if False else 'OK: compiled and eager agree')\n"


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    environment = {"torch": "2.13.0+cpu", "device": "cpu"}
    with Store.open(tmp_path / "corpus.db") as store:
        campaign = store.start_campaign(Campaign(0, {}, "fuzzcompile run", "0", environment))
        sha256 = hashlib.sha256(FIXED.encode()).hexdigest()
        store.record(campaign, CaseRecord(sha256, FIXED, "generated"), environment, REPORT)
        store.add_reproducer("F1", Reproducer(FIXED, sha256, 1, "graph", True, "2.13.0+cpu", report=REPORT))
    return tmp_path / "corpus.db"


def test_each_replay_is_an_event(corpus, tmp_path):
    with pytest.raises(SystemExit) as ending:
        main(["replay", "--log", "log.jsonl", "--runs", "1", "--corpus", str(corpus)])
    started, replayed, finished = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (started["event"], started["findings"]) == ("replay_started", 1)
    assert (replayed["event"], replayed["finding"], replayed["status"]) == ("replayed", "F1", "fixed")
    assert (finished["event"], finished["exit_status"]) == ("replay_finished", ending.value.code)
