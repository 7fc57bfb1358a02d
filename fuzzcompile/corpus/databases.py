"""What SQLite and PostgreSQL do differently for a corpus: connections, locks of writers, what errors mean, sizes.

PostgreSQL's writers take one lock for the whole corpus, as they do in SQLite: "look it up, then insert it" is as safe
there as here.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import sqlite3
import threading
import time
from collections.abc import Sequence

from sqlalchemy import URL, Connection, Engine, event, exc, text

from fuzzcompile.corpus.location import POSTGRES, find_file

WRITES = "fuzzcompile_writes"
# A lock that lasts longer is said to be waited for.
PATIENT_SECONDS = 2.0
_log = logging.getLogger(__name__)


def is_server(engine: Engine) -> bool:
    """Return whether a server holds the corpus, which may be lost and come back."""
    return engine.dialect.name == POSTGRES


def reading(engine: Engine) -> Engine:
    """The same engine, each of whose transactions sees one state of the corpus and writes nothing."""
    if not is_server(engine):  # SQLite's do
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def writing(engine: Engine) -> Engine:
    """The same engine, whose transactions take the write lock when they begin."""
    return engine.execution_options(**{WRITES: True})


def integrity(engine: Engine) -> str:
    """``ok``, or what is wrong with the file; a database server checks its own."""
    if is_server(engine):
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


def size(connection: Connection) -> int:
    """The bytes of the corpus's tables and indices, or of its file and log."""
    if is_server(connection.engine):
        tables = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = {}"
        return int(connection.scalar(text(tables.format("current_schema()::regnamespace"))) or 0)
    path = find_file(connection.engine.url)
    beside = () if path is None else (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in beside if file.exists())


def shrink(engine: Engine) -> None:
    """Give back the space of what was deleted; a server uses it again."""
    if is_server(engine):
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (ANALYZE)"))
        return
    with contextlib.closing(engine.raw_connection()) as raw:
        raw.cursor().execute("VACUUM")
        raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


# SQLite.

BUSY_SECONDS = 30.0
INTEGRITY_PROBLEMS_SHOWN = 5
_LOOKS = (0.001, 0.003)  # seconds between two looks at a lock


def prepare_sqlite(engine: Engine, *, foreign_keys: bool) -> None:
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


def explain_sqlite(corpus: str, problem: str) -> str:
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


# PostgreSQL.

# A writer that is stopped or cut off inside a transaction loses the lock after so many seconds.
IDLE_SECONDS = 30
# A wait for the lock that lasts longer counts as an outage.
LOCK_SECONDS = 60
# Of libpq: a server that does not answer is given up; a connection over which nothing arrives any more is noticed.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "fuzzcompile",
}
# Any number will do that no other program takes; the second one is that of the schema in which the corpus lies.
_LOCK = 0x66757A7A
_SETTINGS = (
    f"set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', true), "
    f"set_config('lock_timeout', '{LOCK_SECONDS}s', true)"
)
_TRY = f"SELECT {_SETTINGS}, pg_try_advisory_xact_lock({_LOCK}, hashtext(current_schema()))"
_WAIT = f"SELECT pg_advisory_xact_lock({_LOCK}, hashtext(current_schema()))"

# What a server says that was lost, is starting, is overrun, or ended a session: it may go on later.
_PASSING = ("08", "57P", "53300", "55P03", "40P01", "40001", "25P03")
# What is wrong with a connection that no waiting mends, although the server tells it without a code.
_LASTING = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "permission denied",
            "certificate", "private key", "server does not support SSL", "sslmode", "unknown ca",
            "unsupported protocol", "handshake failure", "invalid connection option")  # fmt: skip


def server_arguments(url: URL) -> dict[str, object]:
    """What is said to the driver beside the URL, which may say otherwise."""
    return {name: value for name, value in _CONNECTION.items() if name not in url.query}


def prepare_server(engine: Engine) -> None:
    """Let writing transactions begin with the lock."""

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        if connection.get_execution_options().get(WRITES):
            *_, locked = connection.exec_driver_sql(_TRY).one()
            if locked:
                return
            said = "Another process is writing to the corpus; waiting up to %d seconds ..."
            timer = threading.Timer(PATIENT_SECONDS, _log.warning, (said, LOCK_SECONDS))
            timer.daemon = True
            timer.start()
            try:
                connection.exec_driver_sql(_WAIT)
            finally:
                timer.cancel()


def set_sequences(connection: Connection, tables: Sequence[str]) -> None:
    """Let the next rows get ids behind those that were given."""
    for name in tables:
        sequence = f"pg_get_serial_sequence('{name}', 'id')"
        connection.exec_driver_sql(f"SELECT setval({sequence}, coalesce(max(id) + 1, 1), false) FROM {name}")


def is_outage(error: exc.DBAPIError) -> bool:
    """Return whether the same call may succeed later, because the server was lost, is starting or is overrun."""
    code, said = getattr(error.orig, "sqlstate", None), str(error.orig)
    if code is not None:
        return str(code).startswith(_PASSING)
    if error.connection_invalidated:  # it was there, and with it all that a connection needs
        return True
    return isinstance(error, exc.OperationalError) and not any(words in said for words in _LASTING)


def lacks_rights(error: exc.DBAPIError) -> bool:
    """Return whether the database's user may not do what was asked."""
    return getattr(error.orig, "sqlstate", None) == "42501"


def explain_server(corpus: str, error: exc.DBAPIError) -> str:
    """Explain an error of the server, and say what to do."""
    said = " ".join(str(error.orig).split())
    whole = f"{getattr(error.orig, 'sqlstate', None)} {said}"
    otherwise = _UNREACHED if is_outage(error) else _EXPLANATIONS[""]
    template = next((text for words, text in _SERVER_EXPLANATIONS.items() if re.search(words, whole)), otherwise)
    return template.format(corpus=corpus, problem=said)


_SERVER_EXPLANATIONS = {
    "^53100|No space left": "The disk of the corpus {corpus} is full ({problem}): make room and run again.",
    "authentication failed|no password supplied": "The server of the corpus {corpus} refuses the user or the password "
    "({problem}): give the password in PGPASSWORD or in the file that PGPASSFILE names.",
    "database.*does not exist": "There is no database of the corpus {corpus} ({problem}): make it with `createdb`, or "
    "name another.",
    "^42501": "The user of the corpus {corpus} may not do that ({problem}): give the user rights on the database's "
    "schema and tables, or name another user.",
}
_UNREACHED = (
    "The server of the corpus {corpus} cannot be reached ({problem}): see that it runs, and run again; what was stored "
    "is kept."
)
