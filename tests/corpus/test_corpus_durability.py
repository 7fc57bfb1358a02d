"""Several processes, kill -9, damage."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from corpus_examples import ENVIRONMENT, FIRED, STREAM, bug, case, report

from fuzzcompile.corpus import databases
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store

ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).with_name("writer_process.py")


def start_writer(corpus: Path | str, prefix: str, *count: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, str(WRITER), str(corpus), prefix, *map(str, count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def lines(writer: subprocess.Popen[str], count: int) -> list[str]:
    assert writer.stdout is not None
    return [writer.stdout.readline().strip() for _ in range(count)]


@pytest.fixture(params=["sqlite", "postgres"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a corpus can be made."""
    if request.param == "sqlite":
        return str(tmp_path / "c.db")
    server = request.getfixturevalue("server")
    return str(server.url(server.create()))


@pytest.mark.parametrize("after", [3, 40])
def test_kill_9_loses_nothing_that_was_recorded(corpus: str, after: int) -> None:
    with start_writer(corpus, "w") as writer:
        lines(writer, after)
        # Between two reads of ours it is anywhere inside a transaction.
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        assert writer.stdout is not None
        rest = writer.stdout.read().split("\n")[:-1]
    said = after - 1 + len(rest)
    with Store.open(corpus, create=False) as store:
        assert store.integrity() == "ok"
        kept = store.recorded_indices(f"{STREAM} w")
        assert set(range(said)) <= kept <= set(range(said + 1))
        assert sum(found.hits for found in store.findings()) == len([i for i in kept if i % 2])
        assert store.coverage()[0].count == store.counters().runs == len(kept)
        (killed,) = store.campaigns()
        assert killed.ended is None
        assert killed.counters["cases"] in (said, said + 1)
        # The next run goes on.
        store.record(None, case("next = 1\n", stream=f"{STREAM} w", index=len(kept)), ENVIRONMENT, bug())
        assert store.integrity() == "ok"


def test_kill_9_while_the_schema_is_made(tmp_path: Path) -> None:
    """An upgrade is one transaction: it is all there or not at all."""
    corpus = tmp_path / "c.db"
    program = (
        "import os, signal, sys;"
        "from sqlalchemy import event, Engine;"
        "event.listen(Engine, 'after_cursor_execute', lambda *a: 'CREATE TABLE runs' in a[2]"
        " and os.kill(os.getpid(), signal.SIGKILL));"
        "from fuzzcompile.corpus.store import Store; Store.open(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(corpus)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    with sqlite3.connect(corpus) as left:
        assert left.execute("select count(*) from sqlite_master").fetchone() == (0,)
    with Store.open(corpus) as store:
        store.record(None, case(), ENVIRONMENT, bug())
        assert store.integrity() == "ok"


def test_processes_create_and_write_one_corpus_together(corpus: str) -> None:
    writers = [start_writer(corpus, str(number), 30) for number in range(3)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    with Store.open(corpus, create=False) as store:
        assert store.counters().runs == store.coverage()[0].count == 90
        assert [found.hits for found in store.findings()] == [15, 15, 15]
        assert store.integrity() == "ok"
        assert len(store.campaigns()) == 3


def test_reading_goes_on_while_another_process_writes(tmp_path: Path) -> None:
    corpus = tmp_path / "c.db"
    with start_writer(corpus, "w", 40) as writer:
        lines(writer, 1)
        with Store.open(corpus, create=False) as reader:
            seen = []
            while writer.poll() is None:
                counters = reader.counters()
                assert counters.runs == sum(counters.by_verdict.values())
                seen.append(counters.runs)
                writer.stdout and writer.stdout.readline()
    assert seen == sorted(seen)


def test_threads_share_a_store(store: Store) -> None:
    def record(number: int) -> None:
        for index in range(10):
            store.record(None, case(f"# {number} {index}\n"), ENVIRONMENT, bug(), [FIRED])

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.finding(1).hits == store.counters().cases == 40


def test_a_lock_that_is_not_released_is_reported(
    tmp_path: Path, file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0.1)
    holder = sqlite3.connect(tmp_path / "corpus.db")
    holder.execute("BEGIN IMMEDIATE")
    with (
        Store.open(tmp_path / "corpus.db") as waiting,
        pytest.raises(CorpusError, match="locked by another process"),
    ):
        assert waiting.counters().runs == 0, "reading needs no lock"
        waiting.record(None, case(), ENVIRONMENT, report())
    holder.close()


def filled(corpus: Path) -> bytearray:
    with Store.open(corpus) as store:
        for index in range(200):
            store.record(None, case(f"x = {index}\n" * 50), ENVIRONMENT, report())
    return bytearray(corpus.read_bytes())


def test_damage_in_the_middle_is_found(tmp_path: Path) -> None:
    corpus = tmp_path / "c.db"
    content = filled(corpus)
    content[-120_000:-80_000] = os.urandom(40_000)  # rows: the schema lies before them
    corpus.write_bytes(content)
    with Store.open(corpus) as store:
        assert store.integrity() != "ok"
        with pytest.raises(CorpusError, match=r"is damaged.*recover") as raised:
            for index in range(200):
                store.record(None, case(f"x = {index}\n" * 50), ENVIRONMENT, report())
    assert raised.value.exit_status == 3


def test_damage_at_the_beginning_is_said_at_once(tmp_path: Path) -> None:
    corpus = tmp_path / "c.db"
    content = filled(corpus)
    content[100:4096] = os.urandom(3996)
    corpus.write_bytes(content)
    with pytest.raises(CorpusError, match="is damaged"):
        Store.open(corpus)


def test_a_file_cut_short_is_found(tmp_path: Path) -> None:
    corpus = tmp_path / "c.db"
    content = filled(corpus)
    corpus.write_bytes(content[: len(content) // 2])
    try:
        with Store.open(corpus) as store:
            assert store.integrity() != "ok"
    except CorpusError as error:
        assert "is damaged" in str(error)


def test_a_dangling_reference_is_found(tmp_path: Path, file_store: Store) -> None:
    file_store.record(None, case(), ENVIRONMENT, bug())
    with sqlite3.connect(tmp_path / "corpus.db") as meddler:
        meddler.execute("delete from cases")
    assert "row 1 of runs refers to a missing row of cases" in file_store.integrity()
