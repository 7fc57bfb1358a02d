"""``fuzzcompile fleet``: its status, and findings confirmed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from calling import CLEAN, SUBTRACTS, call, sentence

from fuzzcompile.corpus.records import CaseRecord
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker import file_triage
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.run.device import identify_machine

THERE = {"torch": str(torch.__version__), "device": "cpu", "machine": "bbbbbbbb", "cpu": "Xeon"}
SIGNATURE = "post_grad:p.py:fold:x"


def report(**fields: Any) -> Any:
    given = {"schema": 1, "torch": str(torch.__version__), "device": "cpu", "verdict": "miscompile", "is_bug": True}
    return given | {"signature": SIGNATURE, "culprit": None, "evidence": {}, "cost": {}, **fields}


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding of another machine in the corpus of this folder."""
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    monkeypatch.chdir(tmp_path)
    with Store.open() as store:
        store.record(None, CaseRecord(hash_source(SUBTRACTS), SUBTRACTS, "generated"), THERE, report())


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What workers would say of each file; nothing is run."""
    answers: list[dict[str, Any]] = []

    def triaged(paths: list[Path], conditions: object) -> Any:
        yield from (FileAnswer(path, answers[0] or None, error="no worker", status=3) for path in paths)

    monkeypatch.setattr(file_triage, "triage_files", triaged)
    return answers


def test_the_status_is_text_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("fleet", "status") == 0
    out = capsys.readouterr().out
    assert "No campaign was heard of" in out and "1 waiting for one" in out and "replay --confirm" in out
    assert call("fleet", "status", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["open_findings"] == {"confirmed": 0, "pending": 1, "not reproduced": 0}
    assert told["campaigns"] == told["machines"] == told["disagreements"] == [] and told["new_in_hour"] == 1


def test_there_must_be_a_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("fleet", "status", "--corpus", "none.db") == 3
    assert "none.db" in sentence(capsys)


@pytest.mark.parametrize(
    ("answer", "result", "second", "status"),
    [
        (report(), "confirmed", "confirmed", 0),
        (report(verdict="equal", is_bug=False, signature=None), "not reproduced", "not reproduced", 0),
        (report(signature="decomposition:d.py:celu:y"), "differs", "pending", 0),
        ({}, "not judged", "pending", 3),
    ],
)
def test_what_this_machine_says_is_stored_once(
    answer: dict[str, Any], result: str, second: str, status: int, judged: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    judged.append(answer)
    assert call("replay", "--confirm", "--device", "cpu", "--json") == status
    assert json.loads(capsys.readouterr().out)["result"] == result
    with Store.open() as store:
        finding, runs = store.finding("F1"), store.stats().runs
        assert finding.machines.second_machine == second
    if answer:
        assert call("replay", "--confirm", "--device", "cpu") == 0
        assert "No finding waits" in capsys.readouterr().err
        assert call("replay", "--confirm", "--select", "F1", "--device", "cpu") == 0
        assert "left out" in capsys.readouterr().out
        with Store.open() as store:
            assert store.stats().runs == runs


def test_the_machine_that_found_it_says_so(judged: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open() as store:
        own = {**THERE, "machine": identify_machine()}
        store.record(
            None, CaseRecord(hash_source(CLEAN), CLEAN, "generated"), own, report(signature="post_grad:q.py:r")
        )
    assert call("replay", "--confirm", "--select", "F2", "--device", "cpu") == 0
    assert "F2: left out; it was seen on this machine: confirm it on another one." in capsys.readouterr().out


def test_another_torch_is_no_second_machine(judged: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open() as store:
        old = {**THERE, "torch": "1.0"}
        store.record(
            None, CaseRecord(hash_source(CLEAN), CLEAN, "generated"), old, report(signature="post_grad:q.py:r")
        )
    assert call("replay", "--confirm", "--select", "F2", "--device", "cpu") == 0
    assert "F2: left out; it was not seen under torch " in capsys.readouterr().out


def test_what_was_called_otherwise_says_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("fleet", "confirm", "F1", "--device", "cpu") == 2
    assert "`fuzzcompile replay --confirm [--select FINDING]` now" in sentence(capsys)
    assert call("corpus", "copy", "a.db", "b.db", "--json") == 2
    assert "`fuzzcompile corpus import FROM --whole --corpus TO` now" in sentence(capsys)
    assert call("replay", "--confirm", "--torch", "2.11.0") == 2
    assert "leave out --torch" in sentence(capsys)


def test_what_was_imported_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "import", "corpus/fuzzcompile.db", "--corpus", "mine.db") == 0
    capsys.readouterr()
    assert call("replay", "--confirm", "--select", "F1", "--corpus", "mine.db") == 2
    assert "F1 comes from another corpus" in sentence(capsys)


@pytest.mark.slow
def test_a_right_program_is_judged_by_a_worker_and_not_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("replay", "--confirm", "--select", "F1", "--device", "cpu") == 0
    assert "F1: not reproduced; on this machine: " in capsys.readouterr().out
    with Store.open() as store:
        assert store.finding("F1").machines.clean == {identify_machine()}


def test_a_name_tells_containers_of_one_machine_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    digits: dict[str, set[str]] = {}
    for name in ("", "node-a", "node-b", "node-a"):
        monkeypatch.setenv("FUZZCOMPILE_MACHINE", name)
        identify_machine.cache_clear()
        digits.setdefault(name, set()).add(identify_machine())
    identify_machine.cache_clear()
    assert all(len(each) == 1 for each in digits.values()) and len(set.union(*digits.values())) == 3
