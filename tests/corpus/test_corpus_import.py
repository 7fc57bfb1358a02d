"""What is exported comes back whole; what comes twice changes nothing; what is broken is refused with its reason."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import earlier_corpora
import pytest
from corpus_examples import ENVIRONMENT, FIRED, STREAM, TORCH, bug, campaign, case, report, reproducer

from fuzzcompile.corpus.imports import Arrived
from fuzzcompile.corpus.models import Related, Replay
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import Mark
from fuzzcompile.corpus.transfer import opened
from fuzzcompile.model.errors import UsageError

COMMITTED = Path(__file__).parents[2] / "corpus"
FOLD = "post_grad:p.py:fold:sum(dim)"
INVALID = "decomposition:d.py:celu"


def take(store: Store, source: str | Path) -> list[Arrived]:
    """Import, and say what came."""
    with opened(str(source), Path(store.location)) as found:
        return list(store.copy(found, lambda *_: None) if isinstance(found, Store) else store.take(found))


def told(store: Store) -> list[dict[str, Any]]:
    """All that a corpus says of its findings, by signature, without the ids and the trust that are its own."""
    rows = []
    for finding in sorted(store.findings(), key=lambda finding: finding.signature):
        said = vars(finding) | {
            "id": 0,
            "trusted": None,
            "original": finding.duplicate_of and store.finding(finding.duplicate_of).signature,
        }
        said |= {"duplicate_of": None, "group": store.umbrella(finding.umbrella)}
        said |= {"best": store.best_reproducer(finding.id), "environment": store.environment_of(finding.id)}
        said |= {"related": store.related(finding.id), "names": store.describe(finding.id)["names"]}
        rows.append(said | {"replays": [replay.to_dict("id", "finding_id") for replay in store.replays(finding.id)]})
    return rows


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Store]:
    """Two findings with everything that can be said of them, the first a duplicate of the second."""
    with Store.open(tmp_path / "theirs.db") as store:
        number = store.start_campaign(campaign())
        store.record(number, case("a\n", stream=STREAM, index=3), ENVIRONMENT, bug("unattributed:-:program-1"), [FIRED])
        store.record(number, case("b\n"), ENVIRONMENT, bug(INVALID, verdict="accepts_invalid"))
        store.record(number, case("clean\n", stream=STREAM, index=4, choices=b"x"), ENVIRONMENT, report())
        script = reproducer(
            report=bug(FOLD), neighbour="n\n", program="p" * 64, shown={"plain": "x = 1\n", "ladder": []},
            case_sha256=case("a\n").sha256, environment={**ENVIRONMENT, "cores": 4},
        )  # fmt: skip
        store.add_reproducer("F1", script)
        store.mark("F1", Mark("dup", duplicate_of="F2", note="why"))
        store.mark("validation", Mark("known", "https://example.org/1"))
        store.add_replay("F1", Replay(script.sha256, TORCH, "abc", "flaky", ("failing", "fixed"), "BUG", 1.5))
        store.keep_related("F1", [Related("https://example.org/2", "issue", "t", "open", 0.5, "fold")], ["fold"])
        yield store


@pytest.fixture
def exports(filled: Store, tmp_path: Path) -> Path:
    folder = tmp_path / "exports"
    for name in ("F1", "F2"):
        filled.export(name, folder / "deep" / name)
    return folder


def test_a_finding_comes_back_as_it_was_exported(filled: Store, exports: Path, store: Store) -> None:
    assert [(item.how, item.finding, item.why) for item in take(store, exports)] == [
        ("new", "F1", ""),
        ("new", "F2", ""),
    ]
    assert told(store) == told(filled)


@pytest.mark.parametrize("kind", ["folder", "zip", "database"])
def test_what_comes_twice_changes_nothing(
    filled: Store, exports: Path, store: Store, tmp_path: Path, kind: str
) -> None:
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", exports)
    source = {"folder": exports, "zip": archive, "database": filled.location}[kind]
    assert {item.how for item in take(store, source)} == {"new"}
    first, counted = told(store), store.stats()
    assert {item.how for item in take(store, source)} == {"known"}
    assert (told(store), store.stats().cases, store.stats().runs) == (first, counted.cases, counted.runs)
    assert first == told(filled) and store.integrity() == "ok"


def test_another_corpus_comes_with_its_campaigns_cases_and_coverage(filled: Store, store: Store) -> None:
    take(store, filled.location)
    assert [row.started for row in store.campaigns()] == [row.started for row in filled.campaigns()]
    assert store.recorded_indices(STREAM) == {3, 4}
    assert [(row.rewrite, row.count) for row in store.coverage()] == [(FIRED.rewrite, FIRED.count)]
    clean = store.case(case("clean\n").sha256)
    assert clean is not None and clean.choices == b"x"


@pytest.mark.parametrize("revision", earlier_corpora.EARLIER)
def test_an_older_corpus_is_read_and_left_as_it_is(store: Store, tmp_path: Path, revision: str) -> None:
    path = earlier_corpora.make_corpus(tmp_path / "older.db", revision)
    before = path.read_bytes()
    assert [item.finding for item in take(store, path)] == ["F1"]
    assert store.finding(earlier_corpora.SIGNATURE).severity == "silent" and path.read_bytes() == before


def test_findings_of_two_corpora_are_one_where_they_are_the_same(filled: Store, exports: Path, store: Store) -> None:
    store.record(None, case("c\n"), ENVIRONMENT, bug(INVALID, verdict="accepts_invalid"))
    store.mark("F1", Mark("wontfix"))
    arrived = {item.finding: item.how for item in take(store, exports)}
    assert arrived == {"F1": "known", "F2": "new"}
    both = store.finding("F1")
    assert (both.status, both.hits) == ("wontfix", 1), "what is said here stands; hits may overlap"
    assert store.finding(FOLD).duplicate_of == "F1"


def test_two_symptoms_of_a_place_without_a_cause_are_kept_apart(store: Store, tmp_path: Path) -> None:
    for number, verdict in enumerate(("miscompile", "compile_error", "miscompile")):
        with Store.open(tmp_path / f"{number}.db") as other:
            other.record(None, case(f"{number}\n"), ENVIRONMENT, bug("post_grad:p.py:fold", verdict=verdict))
            other.export("F1", tmp_path / "exports" / str(number))
    for _ in range(2):
        assert [item.finding for item in take(store, tmp_path / "exports")] == ["F1", "F2", "F1"]
    judged = reproducer(report=bug("post_grad:p.py:fold:dtype", verdict="compile_error"))
    assert store.add_reproducer("F2", judged).signature == "post_grad:p.py:fold:dtype"
    assert [item.finding for item in take(store, tmp_path / "exports")] == ["F1", "F2", "F1"]


@pytest.mark.parametrize("corpus", sorted(COMMITTED.glob("torch-*")), ids=lambda folder: folder.name)
def test_the_committed_findings_of_a_torch_load_and_are_distinct(store: Store, corpus: Path) -> None:
    folders = sorted(path.parent.name for path in corpus.rglob("finding.json"))
    arrived = take(store, corpus)
    assert folders and [Path(item.name).name for item in arrived] == folders
    assert {item.how for item in arrived} == {"new"}
    assert all(finding.severity and finding.reproducer_lines for finding in store.summaries())


def spoil(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoiled(folder: Path) -> None:
        said = json.loads((folder / "finding.json").read_text())
        change(said)
        (folder / "finding.json").write_text(json.dumps(said))

    return spoiled


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / "finding.json").write_text("{"), "not one that fuzzcompile wrote"),
        (lambda folder: (folder / "finding.json").write_text("[1]"), "not one that fuzzcompile wrote"),
        (lambda folder: (folder / "case.py").unlink(), "it has no case.py"),
        (spoil(lambda said: said.pop("signature")), "it has no signature"),
        (spoil(lambda said: said["report"].update(is_bug=False)), "shows no bug"),
        (spoil(lambda said: said.update(first_seen="2026-01-01")), "has no zone"),
        (spoil(lambda said: said.update(status="solved")), "'solved' is no status"),
        (spoil(lambda said: said["related"].append({"url": 1})), "not one that fuzzcompile wrote"),
        (spoil(lambda said: said["report"].update(evidence=[])), "not one that fuzzcompile wrote"),
        (spoil(lambda said: said["report"].pop("device")), "lacks `device`"),
    ],
)
def test_one_that_is_broken_does_not_stop_the_rest(
    store: Store, exports: Path, damage: Callable[[Path], object], why: str
) -> None:
    damage(exports / "deep" / "F1")
    broken, whole = take(store, exports)
    assert (broken.how, broken.finding, whole.how) == ("refused", None, "new") and why in broken.why
    assert [finding.signature for finding in store.findings()] == [INVALID] and store.counters().runs == 1


def test_a_changed_script_is_taken_as_it_is_and_said(store: Store, exports: Path) -> None:
    (exports / "deep" / "F1" / "repro.py").write_text("better\n")
    assert take(store, exports)[0].why == "repro.py changed since the export"
    best = store.best_reproducer(FOLD)
    assert best is not None and best.source == "better\n"


def test_a_damaged_archive_is_refused_and_the_rest_taken(store: Store, exports: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "all"), "zip", exports))
    with zipfile.ZipFile(archive) as whole:
        start = next(info.header_offset for info in whole.infolist() if info.filename.endswith("F1/case.py"))
    data = bytearray(archive.read_bytes())
    data[start + 50 : start + 55] = b"12345"
    archive.write_bytes(data)
    assert {item.how for item in take(store, archive)} == {"refused", "new"}


@pytest.mark.parametrize(
    ("source", "why"),
    [("nowhere", "There is no nowhere"), (".", "holds no finding.json"), ("text", "neither a corpus nor a zip")],
)
def test_what_cannot_be_imported(store: Store, tmp_path: Path, source: str, why: str) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "corpus.db").touch()
    with pytest.raises(UsageError, match=why):
        take(store, source)


def test_a_corpus_is_not_imported_into_itself(file_store: Store) -> None:
    with pytest.raises(UsageError, match="is the corpus itself"):
        take(file_store, file_store.location)


def test_a_zip_behind_a_url(filled: Store, exports: Path, store: Store, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "served" / "all"), "zip", exports)
    handler = lambda *given: http.server.SimpleHTTPRequestHandler(*given, directory=str(tmp_path / "served"))  # noqa: E731
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert {item.how for item in take(store, f"{url}/all.zip")} == {"new"}
        with pytest.raises(CorpusError, match="HTTP 404"):
            take(store, f"{url}/none.zip")
        server.shutdown()
    with pytest.raises(CorpusError, match="cannot be had"):
        take(store, f"{url}/all.zip")
    assert told(store) == told(filled)


# What a corpus holds, and what of it can go

LATER = datetime.now(UTC) + timedelta(days=1)


def test_stats(filled: Store) -> None:
    counted = filled.stats()
    assert (counted.cases, counted.runs, counted.findings, counted.campaigns) == (3, 3, 2, 1)
    assert counted.by_severity == {"silent": 1, "accepts_invalid": 1}
    assert counted.by_status == {"dup": 1, "open": 1} and counted.by_stage == {"post_grad": 1, "decomposition": 1}
    assert counted.bytes["file"] > counted.bytes["reports"] > counted.bytes["cases"] == len("a\nb\nclean\n")


def test_what_is_clean_and_old_goes_but_its_place_in_the_stream(filled: Store) -> None:
    filled.record(None, case("loose\n" * 99), {**ENVIRONMENT, "cores": 99}, report())
    filled.record(None, case("first\n"), ENVIRONMENT, report(), [FIRED])
    before, findings = filled.stats(), told(filled)
    promised = filled.collect(LATER, dry=True)
    assert (promised.runs, promised.cases, promised.emptied) == (2, 2, 1) and filled.stats() == before
    freed = filled.collect(LATER)
    assert (freed.runs, freed.cases, freed.emptied, freed.environments) == (2, 2, 1, 1)
    assert freed.bytes == promised.bytes > len("loose\n" * 99)
    assert told(filled) == findings and filled.integrity() == "ok"
    assert filled.recorded_indices(STREAM) == {3, 4} and filled.has_source(case("clean\n").sha256)
    assert filled.collect(LATER).bytes == 0
    filled.record(None, case("clean\n"), ENVIRONMENT, bug("x:m.py:y"))
    assert filled.finding("x:m.py:y").source == "clean\n", "what was dropped comes back with a new run"


def test_what_is_young_or_was_first_to_reach_something_stays(filled: Store) -> None:
    assert filled.collect(datetime.now(UTC) - timedelta(days=1)).bytes == 0
    filled.record(None, case("clean\n"), ENVIRONMENT, report(), [FIRED])
    other = FIRED.__class__("lowering", "", "aten.mm", "fallback")
    filled.record(None, case("clean\n"), ENVIRONMENT, report(), [other])
    assert filled.collect(LATER).emptied == 0
