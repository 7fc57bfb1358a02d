import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, lacking

from fuzzcompile.corpus.models import Base
from fuzzcompile.corpus.store import Store

_ON_POSTGRES_SLOWLY = {
    "test_corpus_export",
    "test_corpus_import",
    "test_corpus_matching",
    "test_corpus_trust",
    "test_drawn_from",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What these modules store is stored by what others show on both databases: here, PostgreSQL is for slow tests."""
    for item in items:
        if item.path.stem in _ON_POSTGRES_SLOWLY and "[postgres" in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def no_corpus_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that holds nothing: copying its file is faster than making the schema again."""
    path = tmp_path_factory.mktemp("empty") / "corpus.db"
    Store.open(path).close()
    return path


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server, for all tests that do not harm it."""
    if why := lacking():
        pytest.skip(why)
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def template(server: PostgresServer) -> str:
    """A database that holds an empty corpus."""
    name = server.create()
    Store.open(server.url(name)).close()
    return name


@pytest.fixture
def database(server: PostgresServer, template: str) -> Iterator[str]:
    """The URL of a PostgreSQL database with an empty corpus."""
    name = server.create(template)
    yield server.url(name)
    server.drop(name)


@pytest.fixture(scope="session")
def shared(server: PostgresServer, template: str) -> Iterator[Store]:
    """A corpus in PostgreSQL that is emptied after each test: that is faster than making a database."""
    with Store.open(server.url(server.create(template))) as opened:
        yield opened


@pytest.fixture
def server_store(shared: Store) -> Iterator[Store]:
    """An empty corpus in PostgreSQL."""
    yield shared
    keyed = [name for name, table in Base.metadata.tables.items() if "id" in table.columns]
    statements = [
        "SET LOCAL session_replication_role = replica",  # without foreign keys, in any order
        *(f"DELETE FROM {name}" for name in Base.metadata.tables),
        *(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), 1, false)" for name in keyed),
    ]
    with shared._engine.begin() as connection:
        connection.exec_driver_sql("; ".join(statements))


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """An empty corpus, in each of the databases."""
    kept: Store = request.getfixturevalue("file_store" if request.param == "sqlite" else "server_store")
    return kept


@pytest.fixture
def file_store(tmp_path: Path, empty: Path) -> Iterator[Store]:
    """An empty corpus in the file ``corpus.db``."""
    with Store.open(shutil.copy(empty, tmp_path / "corpus.db")) as opened:
        yield opened
