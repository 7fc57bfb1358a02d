"""Engines, transactions and their errors: all that is particular to SQLite."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, exc, text

from fuzzcompile.corpus.failures import CorpusError
from fuzzcompile.corpus.location import describe

BUSY_SECONDS = 30.0
# A lock that lasts longer is said to be waited for.
PATIENT_SECONDS = 2.0
_log = logging.getLogger(__name__)
WRITES = "fuzzcompile_writes"
INTEGRITY_PROBLEMS_SHOWN = 5


def connect(url: URL, *, migrating: bool = False) -> Engine:
    """Return an engine; for ``migrating``, foreign keys are off, because migrations rebuild tables.

    Raises:
        CorpusError: the URL's database driver is not installed.
    """
    # Closing the last connection folds SQLite's log into the file: the migrating one closes at once.
    try:
        engine = create_engine(url, json_serializer=to_json, poolclass=NullPool if migrating else None)
    except (exc.ArgumentError, ImportError) as error:
        raise CorpusError(
            f"The corpus {describe(url)} needs a database driver that is not installed ({error}): "
            "install it, or give a path instead."
        ) from error
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine, foreign_keys=not migrating)
    return engine


def writing(engine: Engine) -> Engine:
    """The same engine, whose transactions take the write lock when they begin.

    A transaction that reads first and writes later could not wait for another writer: SQLite
    would refuse it at once, whatever the busy timeout.
    """
    return engine.execution_options(**{WRITES: True})


def to_json(value: object) -> str:
    """Strict JSON: a NaN or an infinity raises ValueError."""
    return json.dumps(value, allow_nan=False)


@contextmanager
def explained_errors(url: URL) -> Iterator[None]:
    """Turn errors about the database's file or server into a `CorpusError`.

    Violated constraints and wrong values are bugs of this program, and pass through.
    """
    try:
        yield
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError):
        raise
    except exc.DBAPIError as error:
        raise CorpusError(_explain(describe(url), str(error.orig))) from error
    except sqlite3.Error as error:  # of our own statements, which SQLAlchemy does not see
        raise CorpusError(_explain(describe(url), str(error))) from error


def integrity(engine: Engine) -> str:
    """``ok``, or what is wrong with the file; a database server checks its own."""
    if engine.dialect.name != "sqlite":
        return "ok"
    try:
        with engine.connect() as connection:
            problems = list(connection.scalars(text("PRAGMA integrity_check")))
            dangling = connection.execute(text("PRAGMA foreign_key_check")).all()
    except exc.DatabaseError as error:
        return str(error.orig)
    if problems == ["ok"]:
        problems = [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in dangling]
    return "; ".join(problems[:INTEGRITY_PROBLEMS_SHOWN]) or "ok"


def _prepare_sqlite(engine: Engine, *, foreign_keys: bool) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: object) -> None:
        # sqlite3 would begin transactions late and leave schema changes outside of them.
        connection.isolation_level = None
        # Readers go on while a campaign writes.
        _patiently(connection, "PRAGMA journal_mode = WAL")
        # A process killed with -9 loses nothing under NORMAL either; FULL also survives a machine
        # that goes down, and costs one fsync a case where a case takes a second.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        if connection.get_execution_options().get(WRITES):
            _patiently(driver, "BEGIN IMMEDIATE")
        else:
            driver.execute("BEGIN")


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Execute a statement that needs a lock; a wait of more than `PATIENT_SECONDS` is announced.

    SQLite's own wait is not enough: a change of the journal mode does not wait, so that two processes that create a
    corpus together must retry.
    """
    started, announced = time.monotonic(), False
    connection.execute(f"PRAGMA busy_timeout = {int(min(PATIENT_SECONDS, BUSY_SECONDS) * 1000)}")
    while True:
        try:
            connection.execute(statement)
            break
        except sqlite3.OperationalError as error:
            waited = time.monotonic() - started
            if "locked" not in str(error) or waited > BUSY_SECONDS:
                raise
            if waited > PATIENT_SECONDS and not announced:
                _log.warning("Another process has locked the corpus; waiting up to %.0f seconds ...", BUSY_SECONDS)
                announced = True
            time.sleep(0.05)
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


# What a database error says, and what that means for the corpus; the first that fits.
_EXPLANATIONS = {
    "not a database": "{corpus} is not an SQLite database: name another file with --corpus.",
    "malformed": "The corpus {corpus} is damaged ({problem}): restore a copy, or save what can be read "
    "with `sqlite3 OLD .recover | sqlite3 NEW`.",
    "unable to open": "The corpus {corpus} cannot be written ({problem}): name a writable place with --corpus.",
    "readonly": "The corpus {corpus} cannot be written ({problem}): name a writable place with --corpus.",
    "locked": f"The corpus {{corpus}} was locked by another process for {BUSY_SECONDS:.0f} seconds: "
    "end that process, or name another with --corpus.",
    "disk": "The disk of the corpus {corpus} fails or is full ({problem}): make room and run again.",
    "": "The corpus {corpus} cannot be used ({problem}): fix that, or name another with --corpus.",
}


def _explain(corpus: str, problem: str) -> str:
    text = next(text for words, text in _EXPLANATIONS.items() if words in problem)
    return text.format(corpus=corpus, problem=problem)
