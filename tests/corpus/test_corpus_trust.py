"""What comes from another corpus is marked, source by source, until someone here trusts it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpus_examples import ENVIRONMENT, STREAM, bug, campaign, case, report, reproducer
from sqlalchemy.orm import Session

from fuzzcompile.corpus import imports
from fuzzcompile.corpus.records import CorpusGone
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transfer import opened
from fuzzcompile.front.cli.case_arguments import require_trusted
from fuzzcompile.model.errors import UsageError

FOLD, OTHER = "post_grad:p.py:fold:sum(dim)", "post_grad:q.py:other:mul"


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Store]:
    """Two findings: the first has a reproducer, the second only its case."""
    with Store.open(tmp_path / "theirs.db") as other:
        left = {"source": "evil()\n", "index": 7}
        number = other.start_campaign(campaign(settings={"stream": STREAM}))
        other.record(number, case("a\n"), ENVIRONMENT, bug(FOLD))
        other.record(number, case("b\n"), ENVIRONMENT, bug(OTHER))
        other.add_reproducer("F1", reproducer("evil()\n", report=bug(FOLD), case_sha256=case("a\n").sha256))
        counters = {"left_over": {"cases": [left], "findings": [OTHER], "given_up": []}}
        other.finish_campaign(number, counters, "budget")
        yield other


def arrive(store: Store, theirs: Store, how: str, folder: Path, *, trusted: bool = False) -> None:
    """Import all of the other corpus, as exports or as a database."""
    if how == "exports":
        for name in ("F1", "F2"):
            theirs.export(name, folder / "exports" / name)
    with opened(str(folder / "exports") if how == "exports" else theirs.location, None) as found:
        if isinstance(found, Store):
            list(store.copy(found, lambda *_: None, trusted=trusted))
        else:
            list(store.take(found, trusted=trusted))


def trusted(store: Store) -> list[bool]:
    summaries = {finding.id: finding.trusted for finding in store.summaries()}
    assert summaries == {finding.id: finding.trusted for finding in store.findings()}, "lists and findings agree"
    return [summaries[key] for key in sorted(summaries)]


@pytest.mark.parametrize("how", ["exports", "database"])
def test_what_is_imported_is_not_trusted_until_someone_says_so(
    how: str, store: Store, theirs: Store, tmp_path: Path
) -> None:
    arrive(store, theirs, how, tmp_path)
    assert trusted(store) == [False, False]
    assert store.trust(["F1"]) == 2 and trusted(store) == [True, False]
    arrive(store, theirs, how, tmp_path)
    assert trusted(store) == [True, False], "what comes again changes no mark"
    assert store.trust(None) == 1 and trusted(store) == [True, True]
    assert store.trust(["F1", "F2"]) == 0


@pytest.mark.parametrize("how", ["exports", "database"])
def test_an_import_can_be_trusted_at_once(how: str, store: Store, theirs: Store, tmp_path: Path) -> None:
    arrive(store, theirs, how, tmp_path, trusted=True)
    assert trusted(store) == [True, True]


def test_what_is_judged_here_is_trusted(store: Store, theirs: Store, tmp_path: Path) -> None:
    store.record(None, case("a\n"), ENVIRONMENT, bug(FOLD))
    arrive(store, theirs, "database", tmp_path)
    assert trusted(store) == [False, False], "its reproducer is theirs"
    store.add_reproducer("F1", reproducer("own()\n", lines=0, report=bug(FOLD), case_sha256=case("a\n").sha256))
    assert trusted(store) == [True, False], "the best reproducer is from here now, and so is the case"
    store.record(None, case("b\n"), ENVIRONMENT, bug(OTHER))
    assert trusted(store) == [True, True], "the same program was drawn here"


def test_an_import_changes_nothing_of_a_script_that_is_trusted(store: Store, theirs: Store, tmp_path: Path) -> None:
    store.record(None, case("a\n"), ENVIRONMENT, bug(FOLD))
    own = reproducer("evil()\n", report=bug(FOLD), neighbour="ours\n", case_sha256=case("a\n").sha256)
    store.add_reproducer("F1", own)
    theirs.add_reproducer("F1", reproducer("evil()\n", report=bug(FOLD), neighbour="theirs\n"))
    arrive(store, theirs, "database", tmp_path)
    best = store.best_reproducer("F1")
    assert best is not None and best.neighbour == "ours\n" and trusted(store)[0]


def test_a_program_cannot_pass_for_one_that_is_trusted_here(store: Store, theirs: Store, tmp_path: Path) -> None:
    """A case is recognised by its hash, which a corpus may say wrongly."""
    store.record(None, case("ours\n", stream=STREAM, index=0), ENVIRONMENT, report())
    with sqlite3.connect(theirs.location) as forged:
        forged.execute("update cases set sha256 = ? where source = ?", (case("ours\n").sha256, "b\n"))
    arrive(store, theirs, "database", tmp_path)
    finding = store.finding(OTHER)
    assert (finding.source, finding.source_sha256) == ("b\n", case("b\n").sha256) and not finding.trusted


@pytest.mark.parametrize("trusts", [False, True])
def test_programs_that_a_foreign_campaign_left_over_do_not_come_along(
    trusts: bool, store: Store, theirs: Store, tmp_path: Path
) -> None:
    arrive(store, theirs, "database", tmp_path, trusted=trusts)
    left = store.campaigns()[0].counters.get("left_over")
    assert isinstance(left, dict) is trusts
    if isinstance(left, dict):
        assert left["findings"] == [OTHER] and [kept["source"] for kept in left["cases"]] == ["evil()\n"]


@pytest.mark.parametrize("trusts", [False, True])
def test_an_imported_campaign_that_had_not_ended_holds_no_part_here(
    trusts: bool, file_store: Store, tmp_path: Path
) -> None:
    begun = campaign(settings={"stream": STREAM}, seed=7)
    with Store.open(tmp_path / "running.db") as running:
        key = running.start_campaign(begun)
        running.record(key, case("a\n"), ENVIRONMENT, bug(FOLD))
        file_store.start_campaign(campaign())
        for place in (running.location, file_store.location):
            with sqlite3.connect(place) as elsewhere:  # as of another machine; both have the same token
                elsewhere.execute("update campaigns set token = 'same'")
                elsewhere.execute("update campaigns set settings = json_set(settings, '$.process', 'elsewhere:1:1')")
        assert running.heartbeat(running.start_campaign(begun), {}) == 1, "the other one holds part 0"
        arrive(file_store, running, "database", tmp_path, trusted=trusts)
    assert [row.ended for row in file_store.campaigns() if row.seed == 7] == ["imported"] * 2
    assert file_store.heartbeat(file_store.start_campaign(begun), {}) == 0


def test_the_refusal_says_how_to_read_and_how_to_trust(store: Store, theirs: Store, tmp_path: Path) -> None:
    store.record(None, case("own\n"), ENVIRONMENT, bug())
    require_trusted(store, store.findings(), trusted=False)
    arrive(store, theirs, "database", tmp_path)
    with pytest.raises(UsageError, match=r"^F2 comes .* runs its code: .*corpus show F2.*--trust, or .*trust F2"):
        require_trusted(store, [store.finding("F1"), store.finding("F2")], trusted=False)
    with pytest.raises(UsageError, match=r"^F2, F3 come from another corpus.*corpus trust F2 F3"):
        require_trusted(store, store.findings(), trusted=False)
    with pytest.raises(UsageError, match=r"^8 findings \(F2, F3, .*corpus trust --all"):
        require_trusted(store, store.findings() * 4, trusted=False)


def test_nothing_is_trusted_if_one_name_is_wrong(store: Store, theirs: Store, tmp_path: Path) -> None:
    arrive(store, theirs, "database", tmp_path)
    with pytest.raises(UsageError):
        store.trust(["F1", "F9"])
    assert trusted(store) == [False, False]


def test_what_an_outage_undid_is_counted_once(
    file_store: Store, theirs: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, calls = imports.put_copies, list[int]()

    def lost_once(session: Session, runs: Any, copied: imports.Copied) -> imports.Copied:
        calls.append(len(runs))
        now = put(session, runs, copied)
        if len(calls) == 1:
            raise CorpusGone("the server is gone")
        return now

    monkeypatch.setattr(imports, "put_copies", lost_once)
    told = list[tuple[int, int]]()
    list(file_store.copy(theirs, lambda copied, total: told.append((copied.runs, total))))
    assert calls == [2, 2] and told == [(2, 2)]
