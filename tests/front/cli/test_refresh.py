"""``fuzzcompile corpus refresh``: findings of an old corpus, judged again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from calling import call, sentence

from fuzzcompile.corpus.records import CaseRecord
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.signatures import hash_source

DIFFERS = Path(__file__).parents[2].joinpath("known_issues", "issue_196468.py").read_text(encoding="utf-8")
MENDED = """
import torch

def make():
    return torch.sin, (torch.ones(3),)
"""


def stored(store: Store, source: str, signature: str) -> None:
    report = {
        "schema": 1,
        "torch": "2.0.0",
        "device": "cpu",
        "verdict": "miscompile",
        "is_bug": True,
        "signature": signature,
        "evidence": {"outputs": [{"name": "out0", "finding": "far"}]},
        "cost": {},
    }
    store.record(
        None, CaseRecord(hash_source(source), source, "generated"), {"torch": "2.0.0", "device": "cpu"}, report
    )


@pytest.fixture
def location(tmp_path):
    path = tmp_path / "findings.db"
    with Store.open(path) as store:
        stored(store, DIFFERS, "post_grad:torch/_inductor/old.py:old")
        stored(store, MENDED, "post_grad:torch/_inductor/old.py:mended")
    return path


@pytest.mark.slow
def test_what_shows_is_stored_anew_and_what_does_not_is_left(location, tmp_path, capsys):
    drafts = tmp_path / "drafts"
    assert call("corpus", "refresh", "--json", "--corpus", location, "--drafts", drafts) == 0
    out, err = capsys.readouterr()
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["finding"], first["result"]) == ("F1", "refreshed")
    assert (second["finding"], second["result"]) == ("F2", "gone") and "it shows no bug" in second["note"]
    assert "[1/2] judging F1" in err and "1 refreshed, 1 gone" in err
    with Store.open(location) as store:
        finding, best = store.finding("F1"), store.best_reproducer("F1")
        assert (
            finding.signature != "post_grad:torch/_inductor/old.py:old" and finding.report["torch"] == torch.__version__
        )
        assert best is not None and best.confirmed and best.program and best.shown
        assert best.shown["plain_shows"] and len(best.shown["ladder"]) == 4
        assert store.finding("F2").report["torch"] == "2.0.0" and store.best_reproducer("F2") is None
    assert not (drafts / "F2.md").exists()


def test_a_finding_that_the_corpus_lacks_is_named(location, capsys):
    assert call("corpus", "refresh", "F7", "--corpus", location) == 2
    assert "F7" in sentence(capsys)
