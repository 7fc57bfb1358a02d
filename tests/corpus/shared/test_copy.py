"""`fuzzcompile corpus import --whole`: exact, whole, resumable, in every direction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus_examples import ENVIRONMENT, FIRED, STREAM, TORCH, bug, campaign, case, report, reproducer
from postgres_server import PostgresServer, lacking
from sqlalchemy import select

from fuzzcompile.corpus import transfer
from fuzzcompile.corpus.models import Base, Related, Replay
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import Mark
from fuzzcompile.front.cli.main import main
from fuzzcompile.model.errors import UsageError

ODD = "nul \x00, é, \U0001f600, undecodable \udc80, \U000f0000"


def fill(location: str, cases: int = 30) -> None:
    """A corpus with something in every table."""
    with Store.open(location) as store:
        key = store.start_campaign(campaign())
        for index in range(cases):
            judged = bug(f"post_grad:torch/m.py:rule{index % 4}") if index % 3 == 0 else report(evidence={"error": ODD})
            drawn = case(
                f"# {index} {ODD}\n".encode(errors="replace").decode(), stream=STREAM, index=index, choices=b"\0x"
            )
            store.record(key, drawn, ENVIRONMENT, judged, [FIRED])
        store.add_reproducer("F1", reproducer(report=bug("post_grad:torch/m.py:rule0")))
        store.add_reproducer("F2", reproducer("two\n", report=bug("post_grad:torch/m.py:rule3:sum(dim)")))
        store.add_replay("F1", Replay("0" * 64, TORCH, None, "failing", ["failing"], ODD, 1.0))
        store.keep_related("F1", [Related("https://example.org/1", "issue", ODD[:5], "open", 1.0, "w")], ["stride"])
        store.mark("F3", Mark("dup", duplicate_of="F1"))
        store.record(key, case("accepts\n"), ENVIRONMENT, bug("stage:n.py:1", verdict="accepts_invalid"))
        store.mark("validation", Mark("known", "https://example.org/2"))
        store.finish_campaign(key, {"cases": cases}, "budget")


def whole(location: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    with Store.open(location, create=False) as store, store._engine.connect() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns))]
            for table in Base.metadata.sorted_tables
        }


def quiet(*_: object) -> None:
    """No progress."""


@pytest.fixture(
    params=[
        "file to file",
        "file to server",
        "server to file",
        pytest.param("server to server", marks=pytest.mark.slow),
    ]
)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where to copy from, a corpus with something in it, and where to."""
    source, target = str(tmp_path / "from.db"), str(tmp_path / "to.db")
    first, _, last = request.param.split()
    if "server" in (first, last):
        server: PostgresServer = request.getfixturevalue("server")
        source = server.url(server.create()) if first == "server" else source
        target = server.url(server.create()) if last == "server" else target
    fill(source)
    yield source, target


def test_a_copy_is_the_same_and_lives(places: tuple[str, str]) -> None:
    source, target = places
    before = whole(source)
    assert all(before.values()), "something in every table"
    done = transfer.transfer(source, target, quiet)
    assert whole(target) == before == whole(source)
    assert done.copied == sum(done.rows.values()) == sum(map(len, before.values()))
    with Store.open(target, create=False) as store:
        assert store.integrity() == "ok"
        assert store.record(None, case("next\n"), ENVIRONMENT, bug("stage:new.py:1")).is_new_finding
        assert store.start_campaign(campaign()) == 2


def test_a_copy_that_was_cut_off_is_refused_elsewhere_and_resumed(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    monkeypatch.setattr(transfer, "CHUNK", 7)

    def cut_off(table: str, there: int, _: int) -> None:
        if table == "runs" and there > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.transfer(source, target, cut_off)
    with pytest.raises(
        CorpusError,
        match=r"is being copied into: finish it with `.*fuzzcompile corpus import FROM --whole --corpus [^ ]+`",
    ):
        Store.open(target)
    done = transfer.transfer(source, target, quiet)
    assert done.resumed and not done.restarted and 0 < done.copied < sum(done.rows.values())
    assert whole(target) == whole(source)


def test_what_changed_meanwhile_is_copied_anew(places: tuple[str, str]) -> None:
    source, target = places

    def cut_off(table: str, *_: int) -> None:
        if table == "runs":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.transfer(source, target, cut_off)
    with Store.open(source) as store:
        store.mark("F1", Mark("known", "https://example.org/3"))
    assert transfer.transfer(source, target, quiet).restarted
    assert whole(target) == whole(source)


def test_what_holds_something_is_refused(tmp_path: Path) -> None:
    for name in ("from.db", "to.db"):
        fill(str(tmp_path / name), 12)
    before = (tmp_path / "to.db").read_bytes()
    with pytest.raises(UsageError, match=r"holds a corpus: `.*fuzzcompile corpus import from.db --corpus to.db`"):
        transfer.transfer(str(tmp_path / "from.db"), str(tmp_path / "to.db"), quiet)
    with pytest.raises(UsageError, match="is the corpus that is to be copied"):
        transfer.transfer(str(tmp_path / "from.db"), str(tmp_path / "from.db"), quiet)
    with pytest.raises(CorpusError, match="There is no corpus at"):
        transfer.transfer(str(tmp_path / "none.db"), str(tmp_path / "new.db"), quiet)
    with sqlite3.connect(tmp_path / "theirs.db") as theirs:
        theirs.execute("create table runs (id integer)")
    with pytest.raises(CorpusError, match="another program's database"):
        transfer.transfer(str(tmp_path / "from.db"), str(tmp_path / "theirs.db"), quiet)
    assert (tmp_path / "to.db").read_bytes() == before


def test_an_empty_corpus_may_be_copied_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(str(tmp_path / "from.db"), 12)
    Store.open(tmp_path / "to.db").close()
    with pytest.raises(SystemExit) as ending:
        main(["corpus", "import", str(tmp_path / "from.db"), "--whole", "--corpus", str(tmp_path / "to.db"), "--json"])
    assert ending.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"]["cases"] == 13 and said["target"] == str(tmp_path / "to.db") and not said["resumed"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["kill", "stop"])
def test_a_source_that_is_lost_meanwhile_is_waited_for(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := lacking():
        pytest.skip(why)
    monkeypatch.setattr(transfer, "CHUNK", 7)
    with PostgresServer() as fragile:
        source, target = fragile.url(fragile.create()), str(tmp_path / "to.db")
        fill(source)
        harmed = []

        def restart(table: str, there: int, _: int) -> None:
            if table == "cases" and there > 10 and not harmed:
                harmed.append(lost)
                getattr(fragile, lost)()
                fragile.start()

        done = transfer.transfer(source, target, restart)
        assert harmed and not done.resumed and not done.restarted
        assert done.copied == sum(done.rows.values())
        assert whole(target) == whole(source)
