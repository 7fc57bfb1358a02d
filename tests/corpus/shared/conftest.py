from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, lacking

from fuzzcompile.corpus.store import Store
from fuzzcompile.model.settings import SETTINGS


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for known in SETTINGS:
        monkeypatch.delenv(known.variable, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server, for all tests that do not harm it."""
    if why := lacking():
        pytest.skip(why)
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """The URL of a PostgreSQL database with an empty corpus, the password included."""
    name = server.create()
    Store.open(server.url(name)).close()
    yield server.url(name)
    server.drop(name)
