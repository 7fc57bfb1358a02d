"""A corpus in an SQLite file: how it is opened and locked, what its errors mean, how large it is."""

from __future__ import annotations

import contextlib
import logging
import random
import sqlite3
import time

from sqlalchemy import Connection, Engine, event, exc, text

from fuzzcompile.corpus.location import find_file

BUSY_SECONDS = 30.0
# A lock that lasts longer is said to be waited for.
PATIENT_SECONDS = 2.0
WRITES = "fuzzcompile_writes"
INTEGRITY_PROBLEMS_SHOWN = 5
_LOOKS = (0.001, 0.003)  # seconds between two looks at a lock
_log = logging.getLogger(__name__)


def prepare(engine: Engine, *, foreign_keys: bool) -> None:
    """Set up each connection of an engine, and how its transactions begin."""

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
        # A transaction that reads first and writes later could not wait for another writer: SQLite
        # would refuse it at once, whatever the busy timeout.
        if connection.get_execution_options().get(WRITES):
            _patiently(driver, "BEGIN IMMEDIATE")
        else:
            driver.execute("BEGIN")


def integrity(engine: Engine) -> str:
    """``ok``, or what is wrong with the file."""
    try:
        with engine.connect() as connection:
            problems = list(connection.scalars(text("PRAGMA integrity_check")))
            dangling = connection.execute(text("PRAGMA foreign_key_check")).all()
    except exc.DatabaseError as error:
        return str(error.orig)
    if problems == ["ok"]:
        problems = [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in dangling]
    return "; ".join(problems[:INTEGRITY_PROBLEMS_SHOWN]) or "ok"


def size(connection: Connection) -> int:
    """The bytes of the file and its log."""
    path = find_file(connection.engine.url)
    beside = () if path is None else (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in beside if file.exists())


def shrink(engine: Engine) -> None:
    """Rewrite the file without what was deleted from it."""
    with contextlib.closing(engine.raw_connection()) as connection:
        connection.cursor().execute("VACUUM")
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def explain(corpus: str, problem: str) -> str:
    """What an error of SQLite means for the corpus, and what to do."""
    template = next(template for words, template in _EXPLANATIONS.items() if words in problem)
    return template.format(corpus=corpus, problem=problem, seconds=BUSY_SECONDS)


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Execute a statement that needs a lock; a wait of more than `PATIENT_SECONDS` is announced.

    SQLite's own wait is not enough: a change of the journal mode does not wait, so that two processes that create a
    corpus together must retry. And it looks less and less often: of ten writers that store a case every few
    milliseconds, some would wait for seconds while the lock is free most of the time (measured: bench/corpus.py
    --writers). Looking often, each gets it as likely as any other.
    """
    started, announced = time.monotonic(), False
    connection.execute("PRAGMA busy_timeout = 0")
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
            time.sleep(random.uniform(*_LOOKS))
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


# What an error says, and what that means for the corpus; the first that fits.
_EXPLANATIONS = {
    "not a database": "{corpus} is not an SQLite database: name another file with --corpus.",
    "malformed": "The corpus {corpus} is damaged ({problem}): restore a copy, or save what can be read "
    "with `sqlite3 OLD .recover | sqlite3 NEW`.",
    "unable to open": "The corpus {corpus} cannot be written ({problem}): name a writable place with --corpus.",
    "readonly": "The corpus {corpus} cannot be written ({problem}): name a writable place with --corpus.",
    "locked": "The corpus {corpus} was locked by another process for {seconds:.0f} seconds: "
    "end that process, or name another with --corpus.",
    "disk": "The disk of the corpus {corpus} fails or is full ({problem}): make room and run again.",
    "": "The corpus {corpus} cannot be used ({problem}): fix that, or name another with --corpus.",
}
