"""Which file is opened, and what is said about one that cannot be."""

import sqlite3
import sys
from pathlib import Path

import pytest

from fuzzcompile.corpus.location import describe, resolve
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import UsageError


def assert_one_sentence(error: CorpusError, *parts: str) -> None:
    assert error.exit_status == 3
    assert str(error).endswith(".") and "\n" not in str(error)
    for part in parts:
        assert part in str(error)


def test_without_a_name_it_lies_below_the_working_folder(tmp_path: Path) -> None:
    with Store.open() as store:
        assert store.location == str(tmp_path / "corpus" / "fuzzcompile.db")
    assert (tmp_path / "corpus" / "fuzzcompile.db").is_file()


def test_the_environment_variable_names_it_unless_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", str(tmp_path / "elsewhere.db"))
    with Store.open() as store:
        assert store.location == str(tmp_path / "elsewhere.db")
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", "")
    assert describe(resolve(None)) == str(tmp_path / "corpus" / "fuzzcompile.db")


def test_an_argument_beats_the_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", str(tmp_path / "elsewhere.db"))
    assert describe(resolve("mine.db")) == str(tmp_path / "mine.db")


def test_a_url_and_a_path_name_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "c.db"
    with Store.open(f"sqlite:///{path}") as store:
        assert store.location == str(path)
    Store.open("deep/er/c.db", create=False).close()
    Store.open("sqlite:///deep/er/c.db", create=False).close()


def test_a_folder_stands_for_the_database_in_it(tmp_path: Path) -> None:
    Store.open(tmp_path / "fuzzcompile.db").close()
    assert describe(resolve(tmp_path)) == str(tmp_path / "fuzzcompile.db")


def test_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{tmp_path} is a folder; name a file in it, such as .*fuzzcompile\.db"):
        Store.open(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_path_may_hold_spaces_percent_signs_and_letters_of_any_script(tmp_path: Path) -> None:
    path = tmp_path / "50 % of ümlauts?#.db"
    with Store.open(path) as store:
        assert store.counters().runs == 0
    assert path.is_file()


def test_the_file_stays_the_same_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open("c.db") as store:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        store.close()
        assert store.counters().runs == 0
    assert not (tmp_path / "sub" / "c.db").exists()


def test_create_false_wants_a_corpus_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as raised:
        Store.open(tmp_path / "none" / "c.db", create=False)
    assert_one_sentence(raised.value, str(tmp_path / "none" / "c.db"), "fuzzcompile run", "--corpus")
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty.db").touch()
    with pytest.raises(CorpusError, match="holds no corpus yet"):
        Store.open(tmp_path / "empty.db", create=False)


def test_an_empty_file_may_become_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with Store.open(tmp_path / "empty.db") as store:
        assert store.integrity() == "ok"


# Root may write anywhere, so that a folder that nobody can make stands for an unwritable one.
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for name in ("file/c.db", "file/deeper/c.db"):
        with pytest.raises(CorpusError) as raised:
            Store.open(tmp_path / name)
        assert_one_sentence(raised.value, "--corpus", str(tmp_path / name))


def test_a_file_that_cannot_be_written() -> None:
    with pytest.raises(CorpusError) as raised:
        Store.open("/proc/fuzzcompile.db")
    assert_one_sentence(raised.value, "cannot be written", "--corpus")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 500)
    with pytest.raises(CorpusError) as raised:
        Store.open(path)
    assert_one_sentence(raised.value, "is not an SQLite database", "--corpus")
    assert path.read_text() == "not a database, " * 500


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("create table runs (id integer)")
    with pytest.raises(CorpusError) as raised:
        Store.open(path)
    assert_one_sentence(raised.value, "another program's database", "--corpus")
    assert [row[0] for row in sqlite3.connect(path).execute("select name from sqlite_master")] == ["runs"]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:c.db?uri=true"])
def test_a_corpus_that_no_file_holds_is_refused(url: str) -> None:
    with pytest.raises(CorpusError, match="give a path"):
        Store.open(url)


@pytest.mark.parametrize("url", ["oracle+nodriver://u:secret@h/db", "nosuch://u:secret@h/db", "://"])
def test_a_url_without_a_driver_or_a_meaning(url: str) -> None:
    with pytest.raises(CorpusError) as raised:
        Store.open(url)
    assert_one_sentence(raised.value)
    assert "secret" not in str(raised.value)


def test_the_password_of_a_url_is_not_shown() -> None:
    for url in (
        "postgresql://u:secret@h/db",
        "postgres://u@h/db?password=secret",
        "postgresql+psycopg://u:secret@h/db",
    ):
        assert describe(resolve(url)) == "postgresql://u@h/db"
    kept = describe(resolve("postgresql://u:secret@h:5/db?password=secret&sslmode=require"))
    assert kept == "postgresql://u@h:5/db?sslmode=require"
    assert describe(resolve(kept)) == kept, "it can be given again"


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(CorpusError) as raised:
        Store.open("postgresql://u:secret@h/db")
    assert_one_sentence(raised.value, "pip install 'fuzzcompile[postgres]'")
