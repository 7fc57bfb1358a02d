"""`issue --search` asks GitHub, ranks, stores, and prints the links."""

from __future__ import annotations

import hashlib
import json

import pytest
from fake_github import Answered

from fuzzcompile.corpus.records import Campaign, CaseRecord
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import main

SOURCE = """
import torch

def program(x):
    return torch.renorm(x, 2, dim=0, maxnorm=1.0)

def make():
    return program, (torch.randn(2, 3),)
"""
REPORT = {
    "schema": 1, "case": "c", "torch": "2.13.0+cpu", "device": "cpu", "verdict": "metadata", "is_bug": True,
    "confidence": "high", "signature": "decomposition:torch/_decomp/decompositions.py:renorm",
    "evidence": {"outputs": [{"name": "out0", "finding": "stride", "detail": "eager (3, 1), compiled (1, 2)"}]},
    "culprit": {"stage": "decomposition", "rewrite": "aten.renorm.default", "family": "renorm", "necessary": True,
                "source": "torch/_decomp/decompositions.py"},
}  # fmt: skip


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = {"torch": "2.13.0+cpu", "device": "cpu"}
    with Store.open(tmp_path / "corpus.db") as store:
        campaign = store.start_campaign(Campaign(0, {}, "fuzzcompile run", "0", environment))
        case = CaseRecord(hashlib.sha256(SOURCE.encode()).hexdigest(), SOURCE, "generated")
        store.record(campaign, case, environment, REPORT)
    return tmp_path / "corpus.db"


def call(*arguments):
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    return int(ending.value.code or 0)


def test_the_links_are_ranked_kept_and_printed_with_what_was_asked(github, corpus, capsys):
    wanted = github.add(
        7, "[inductor] Fix the stride of renorm's decomposition", pull=True, state="closed", merged=True
    )
    github.add(8, "renorm is slow to compile on MPS: stride of 2", "inductor")
    github.add(9, "Unrelated")
    assert call("issue", "F1", "--search", "--json", "--corpus", corpus) == 0
    answer = json.loads(capsys.readouterr().out)
    first = answer["related"][0]
    assert (first["url"], first["state"]) == (wanted, "merged") and "renorm" in first["why"]
    assert {(asked["query"], asked["kind"]) for asked in answer["queries"]} >= {
        ("renorm stride decomposition", "issue"),
        ("renorm stride decomposition", "pull request"),
    }
    with Store.open(corpus) as store:
        assert [report.url for report in store.related("F1")] == [report["url"] for report in answer["related"]]
        assert store.finding("F1").searched is not None
        assert set(store.finding("F1").queries) == {asked["query"] for asked in answer["queries"]}


def test_that_there_is_none_is_said_of_what_was_asked_alone(github, corpus, capsys):
    assert call("issue", "F1", "--search", "--corpus", corpus) == 0
    shown = "".join(capsys.readouterr())
    assert "No report in pytorch/pytorch" in shown and "renorm stride decomposition  (0 of 0 issues read)" in shown


def test_a_search_that_fails_keeps_what_an_earlier_one_found(github, corpus, capsys):
    url = github.add(7, "[inductor] stride of renorm")
    assert call("issue", "F1", "--search", "--json", "--corpus", corpus) == 0
    capsys.readouterr()
    github.first = [Answered(200, {"total_count": 0, "items": []}), Answered(503, "")]
    assert call("issue", "F1", "--search", "--json", "--corpus", corpus) == 3
    out, err = capsys.readouterr()
    assert out == "" and "HTTP 503" in err and len(err.strip().splitlines()) == 1
    with Store.open(corpus) as store:
        assert [report.url for report in store.related("F1")] == [url]


def test_a_search_is_of_a_finding(github, corpus, capsys):
    (corpus.parent / "case.py").write_text(SOURCE)
    assert call("issue", "case.py", "--search", "--corpus", corpus) == 2
    assert "--search" in capsys.readouterr().err
