"""Engines, transactions and their errors, for whichever database holds the corpus."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, exc

from fuzzcompile.corpus import postgres, sqlite
from fuzzcompile.corpus.failures import CorpusError, CorpusGone
from fuzzcompile.corpus.liveness import Watch
from fuzzcompile.corpus.location import POSTGRES, describe


def connect(url: URL, *, migrating: bool = False) -> Engine:
    """Return an engine; for ``migrating``, foreign keys of SQLite are off, because migrations rebuild tables there.

    Raises:
        CorpusError: the URL's database driver is not installed.
    """
    is_postgres = url.get_backend_name() == POSTGRES
    if is_postgres:
        postgres.require_driver()
    # Closing the last connection folds SQLite's log into the file: the migrating one closes at once.
    pool = {"poolclass": NullPool} if migrating else {}
    try:
        engine = create_engine(
            url,
            json_serializer=to_json,
            connect_args=postgres.arguments(url) if is_postgres else {},
            hide_parameters=True,  # an error would show a case's whole source
            **pool,
        )
    except (exc.ArgumentError, ImportError) as error:
        raise CorpusError(
            f"The corpus {describe(url)} needs a database driver that is not installed ({error}): "
            "give a path, or the URL of a PostgreSQL database, instead."
        ) from error
    if engine.dialect.name == "sqlite":
        sqlite.prepare(engine, foreign_keys=not migrating)
    elif is_postgres:
        postgres.prepare(engine)
        Watch(engine)
    return engine


def reading(engine: Engine) -> Engine:
    """The same engine, each of whose transactions sees one state of the corpus."""
    return postgres.reading(engine) if is_server(engine) else engine


def writing(engine: Engine) -> Engine:
    """The same engine, whose transactions take the write lock when they begin."""
    return engine.execution_options(**{sqlite.WRITES: True})


def is_server(engine: Engine) -> bool:
    """Whether a server holds the corpus, which may be lost and come back."""
    return engine.dialect.name == POSTGRES


def to_json(value: object) -> str:
    """Strict JSON: a NaN or an infinity raises ValueError."""
    return json.dumps(value, allow_nan=False)


@contextmanager
def explained_errors(url: URL) -> Iterator[None]:
    """Turn errors about the database's file or server into a `CorpusError`, an outage into a `CorpusGone`.

    Violated constraints and wrong values are bugs of this program, and pass through.
    """
    try:
        yield
    except (exc.IntegrityError, exc.DataError):
        raise
    except exc.DBAPIError as error:
        if isinstance(error, exc.ProgrammingError) and not postgres.lacks_rights(error):
            raise
        if url.get_backend_name() != POSTGRES:
            raise CorpusError(sqlite.explain(describe(url), str(error.orig))) from error
        kind = CorpusGone if postgres.is_outage(error) else CorpusError
        raise kind(postgres.explain(describe(url), error)) from error
    except sqlite3.Error as error:  # of our own statements, which SQLAlchemy does not see
        raise CorpusError(sqlite.explain(describe(url), str(error))) from error


def integrity(engine: Engine) -> str:
    """``ok``, or what is wrong with the file; a database server checks its own."""
    return sqlite.integrity(engine) if engine.dialect.name == "sqlite" else "ok"


def size(connection: Connection) -> int:
    """The bytes that the corpus takes."""
    return postgres.size(connection) if is_server(connection.engine) else sqlite.size(connection)


def shrink(engine: Engine) -> None:
    """Give back the space of what was deleted, as far as the database does."""
    with explained_errors(engine.url):
        (postgres.shrink if is_server(engine) else sqlite.shrink)(engine)
