"""Models and migrations agree; databases of other versions are upgraded or refused."""

import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from corpus_examples import ENVIRONMENT, bug, case
from earlier_corpora import EARLIER, make_tables
from postgres_server import PostgresServer
from sqlalchemy import create_engine, make_url
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable
from taken_back import take_back

from fuzzcompile.corpus.connection import connect
from fuzzcompile.corpus.maintenance import HEAD, VERSION_TABLE, configuration
from fuzzcompile.corpus.models import Base, fresh_tables
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store

ROOT = Path(__file__).parents[2]
TABLES = {
    "campaigns", "environments", "cases", "runs", "findings", "reproducers", "rewrite_coverage", "replays", "related",
    "umbrellas", "former_names",
}  # fmt: skip


def migrated(path: Path, revision: str) -> Path:
    """A corpus of an earlier schema, brought up to date."""
    Store.open(make_tables(path, revision)).close()
    return path


def names_in(path: Path) -> set[str]:
    """The names of the constraints and indices of a corpus."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("select sql from sqlite_master where sql is not null").fetchall()
    sql = " ".join(sql for (sql,) in rows).replace("(", " ").replace('"', "")
    return {word for word in sql.split() if word.startswith(("ix_", "pk_", "uq_", "fk_"))}


@pytest.mark.parametrize("revision", EARLIER)
def test_the_migrations_make_what_the_models_describe(tmp_path: Path, revision: str) -> None:
    """A change of the models needs a revision."""
    path = migrated(tmp_path / "corpus.db", revision)
    options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
    with create_engine(f"sqlite:///{path}").connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
    assert set(Base.metadata.tables) == TABLES


@pytest.mark.parametrize("revision", EARLIER)
def test_the_names_of_a_new_corpus_are_those_of_a_migrated_one(
    tmp_path: Path, file_store: Store, revision: str
) -> None:
    made = names_in(tmp_path / "corpus.db")
    assert made == names_in(migrated(tmp_path / "older.db", revision))
    assert made and all(len(name) <= 63 for name in made), "PostgreSQL cuts longer names"


def test_the_schema_can_be_written_in_another_dialect() -> None:
    for table in Base.metadata.sorted_tables:
        assert "TIMESTAMP WITHOUT" not in str(CreateTable(table).compile(dialect=postgresql.dialect()))


def test_revisions_form_one_line_and_the_tables_of_each_earlier_one_are_kept() -> None:
    """Before a new revision, the tables of the last one are dumped as its ``schema_REVISION.sql``."""
    scripts = ScriptDirectory.from_config(configuration())
    assert len(scripts.get_heads()) == 1
    assert {script.revision for script in scripts.walk_revisions()} == {*EARLIER, HEAD}


def test_what_an_interrupted_upgrade_leaves_is_no_strangers_database(tmp_path: Path) -> None:
    Store.open(tmp_path / "c.db").close()
    with connect(make_url(f"sqlite:///{tmp_path / 'c.db'}"), migrating=True).begin() as connection:
        fresh_tables().drop_all(connection)
        connection.exec_driver_sql(f"delete from {VERSION_TABLE}")
    with sqlite3.connect(tmp_path / "c.db") as left:
        assert left.execute("select name from sqlite_master where type = 'table'").fetchall() == [(VERSION_TABLE,)]
    with Store.open(tmp_path / "c.db") as store:
        assert store.counters().runs == 0


def test_down_and_up_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "c.db") as store:
        store.record(None, case(), ENVIRONMENT, bug())
    with connect(make_url(f"sqlite:///{tmp_path / 'c.db'}"), migrating=True).begin() as connection:
        take_back(connection)
    with Store.open(tmp_path / "c.db") as store:
        assert store.finding("F1").hits == 1 and store.finding("F1").severity == "silent"


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    Store.open(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute(f"update {VERSION_TABLE} set version_num = '9999'")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(CorpusError, match=r"newer fuzzcompile \(schema 9999.*update fuzzcompile") as raised:
        Store.open(path)
    assert raised.value.exit_status == 3
    assert path.read_bytes() == before


def test_a_schema_from_before_the_first_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    Store.open(path).close()
    with sqlite3.connect(path) as older:
        older.execute(f"update {VERSION_TABLE} set version_num = '0001'")
    older.close()
    before = path.read_bytes()
    with pytest.raises(CorpusError, match=r"an older fuzzcompile \(schema 0001.*start a new one") as raised:
        Store.open(path)
    assert raised.value.exit_status == 3 and "\n" not in str(raised.value)
    assert path.read_bytes() == before


def test_a_corpus_of_the_newest_revision_opens(tmp_path: Path) -> None:
    """Without Alembic, which takes long to import: the code knows its own revision."""
    path = tmp_path / "c.db"
    Store.open(path).close()
    with sqlite3.connect(path) as stamped:
        assert stamped.execute(f"select version_num from {VERSION_TABLE}").fetchall() == [(HEAD,)]
    assert ScriptDirectory.from_config(configuration()).get_current_head() == HEAD
    program = f"import sys; from fuzzcompile.corpus.store import Store; Store.open({str(path)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "sqlalchemy" in done.stdout.split() and "alembic" not in done.stdout.split()


def test_opening_again_keeps_everything(tmp_path: Path) -> None:
    with Store.open(tmp_path / "c.db") as store:
        store.record(None, case(), ENVIRONMENT, bug())
    with Store.open(tmp_path / "c.db") as store:
        assert store.finding("F1").hits == 1


def test_opening_is_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Store.open(tmp_path / "c.db").close()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_pragmas(file_store: Store) -> None:
    with file_store._engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000, "synchronous": 2}


def test_the_package_is_light() -> None:
    """Neither torch nor another room of fuzzcompile comes with it, but for the ground."""
    program = (
        "import sys, fuzzcompile.corpus;"
        "print(*sorted(m for m in sys.modules if m == 'torch' or m.startswith('fuzzcompile.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert all(name.startswith("fuzzcompile.") and name.split(".")[1] in ("corpus", "model") for name in loaded)


def test_the_migrations_make_what_the_models_describe_in_postgresql(database: str) -> None:
    """Down to the first released schema with a finding, and up again."""
    url = make_url(database)
    with Store.open(database) as store:
        store.record(None, case(), ENVIRONMENT, bug())
    with connect(url, migrating=True).begin() as connection:
        take_back(connection)
    with Store.open(database) as store:
        assert store.finding("F1").hits == 1 and store.finding("F1").severity == "silent"
    options = {"version_table": VERSION_TABLE, "compare_type": True}
    with connect(url).connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_a_server_without_a_corpus_is_said(server: PostgresServer) -> None:
    url = server.url(server.create())
    with pytest.raises(CorpusError, match="holds no corpus yet"):
        Store.open(url, create=False)
    with pytest.raises(CorpusError, match="There is no database"):
        Store.open(server.url("nowhere"))
    with pytest.raises(CorpusError, match=r"PGPASSWORD"):
        Store.open(url.replace(server.password, "wrong"))
    with pytest.raises(CorpusError, match=r"cannot be reached"):
        Store.open(url.replace(str(server.port), "1"))


def test_the_files_of_a_process_that_also_knows_a_server_keep_their_constraints(database: str, tmp_path: Path) -> None:
    Store.open(database).close()
    Store.open(tmp_path / "corpus.db").close()
    assert "fk_findings_best_run_id_runs" in names_in(tmp_path / "corpus.db")
