"""A corpus in a PostgreSQL database: connections, the lock of writers, what errors mean, how large it is.

Writers take one lock for the whole corpus, as they do in SQLite: "look it up, then insert it" is as safe there as here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence

from sqlalchemy import URL, Connection, Engine, event, exc, text

from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.sqlite import PATIENT_SECONDS, WRITES

INSTALL = "pip install 'fuzzcompile[postgres]'"
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
_log = logging.getLogger(__name__)


def arguments(url: URL) -> dict[str, object]:
    """What is said to the driver beside the URL, which may say otherwise."""
    return {name: value for name, value in _CONNECTION.items() if name not in url.query}


def prepare(engine: Engine) -> None:
    """Let writing transactions begin with the lock."""

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        if connection.get_execution_options().get(WRITES):
            *_, locked = connection.exec_driver_sql(_TRY).one()
            if not locked:
                with _announced():
                    connection.exec_driver_sql(_WAIT)


def reading(engine: Engine) -> Engine:
    """The same engine, each of whose transactions sees one state of the corpus, as SQLite's do, and writes nothing."""
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def size(connection: Connection) -> int:
    """The bytes of the corpus's tables and indices."""
    tables = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = {}"
    return int(connection.scalar(text(tables.format("current_schema()::regnamespace"))) or 0)


def shrink(engine: Engine) -> None:
    """Let the space of what was deleted be used again."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE)"))


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


def explain(corpus: str, error: exc.DBAPIError) -> str:
    """Explain an error of the server, and say what to do."""
    code, said = str(getattr(error.orig, "sqlstate", None)), " ".join(str(error.orig).split())
    if code.startswith("53100") or "No space left" in said:
        return f"The disk of the corpus {corpus} is full ({said}): make room and run again."
    if any(words in said for words in ("authentication failed", "no password supplied")):
        return (
            f"The server of the corpus {corpus} refuses the user or the password ({said}): give the password in "
            "PGPASSWORD or in the file that PGPASSFILE names."
        )
    if "database" in said and "does not exist" in said:
        return f"There is no database of the corpus {corpus} ({said}): make it with `createdb`, or name another."
    if lacks_rights(error):
        return (
            f"The user of the corpus {corpus} may not do that ({said}): give the user rights on the database's "
            "schema and tables, or name another user."
        )
    if is_outage(error):
        return (
            f"The server of the corpus {corpus} cannot be reached ({said}): see that it runs, and run again; what was "
            "stored is kept."
        )
    return f"The corpus {corpus} cannot be used ({said}): fix that, or name another with --corpus."


def require_driver() -> None:
    """Insist that the driver is there.

    Raises:
        CorpusError: it is not; the message says how to install it.
    """
    try:
        import psycopg  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise CorpusError(f"A corpus in PostgreSQL needs psycopg, which is missing ({error}): {INSTALL}.") from error


@contextlib.contextmanager
def _announced() -> Iterator[None]:
    """Say that another process is waited for, if that takes long."""
    said = "Another process is writing to the corpus; waiting up to %d seconds ..."
    timer = threading.Timer(PATIENT_SECONDS, _log.warning, (said, LOCK_SECONDS))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
