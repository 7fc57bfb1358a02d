"""Engines, transactions and their errors, for whichever database holds the corpus."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, exc

from fuzzcompile.corpus import postgres, sqlite
from fuzzcompile.corpus.location import POSTGRES, describe
from fuzzcompile.corpus.records import CorpusError, CorpusGone

if TYPE_CHECKING:
    import psycopg


# Cuts connections to a server that does not answer any more: stopped, frozen, or behind a network that lost it.

# After so many seconds without an answer, the server is asked whether it is there; then again.
SILENT_SECONDS = 15.0
_EVERY = 1.0


class Watch:
    """Watches what the connections of an engine wait for; a thread of its own asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        # When the server was last known to be there, by connection.
        self._waiting: dict[psycopg.Connection[Any], float] = {}
        self._thread: threading.Thread | None = None
        event.listen(engine, "before_cursor_execute", self._statement_sent)
        event.listen(engine, "after_cursor_execute", self._answered)
        event.listen(engine, "commit", self._sent)
        event.listen(engine, "rollback", self._sent)
        for ending in ("checkin", "invalidate"):
            event.listen(engine, ending, self._forget)

    def _statement_sent(self, connection: Connection, *_: object) -> None:
        self._sent(connection)

    def _sent(self, connection: Connection) -> None:
        if connection.invalidated:
            return
        driver = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
        with self._lock:
            self._waiting[driver] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="corpus-liveness", daemon=True)
                self._thread.start()

    def _answered(self, connection: Connection, *_: object) -> None:
        self._forget(connection.connection.driver_connection)

    def _forget(self, driver: object, *_: object) -> None:
        with self._lock:
            self._waiting.pop(cast("psycopg.Connection[Any]", driver), None)

    def _watch(self) -> None:
        """Run while anything waits: a thread that finds nothing to do ends."""
        while True:
            time.sleep(_EVERY)
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                silent = any(time.monotonic() - since > SILENT_SECONDS for since in self._waiting.values())
            if silent:
                asked, alive = time.monotonic(), self._answers()
                self._settle(asked, alive=alive)

    def _answers(self) -> bool:
        """Return whether the server takes a further connection, or refuses it with a word of its own."""
        import psycopg

        url = self._engine.url
        positional, named = self._engine.dialect.create_connect_args(url)
        try:
            psycopg.connect(*positional, **{**named, **postgres.arguments(url)}).close()
        except psycopg.Error as error:
            return "FATAL" in str(error)
        return True

    def _settle(self, asked: float, *, alive: bool) -> None:
        """Cut what has waited long for a server that is gone; let it wait on for one that is there."""
        with self._lock:
            silent = [driver for driver, since in self._waiting.items() if asked - since > SILENT_SECONDS]
            for driver in silent:
                if alive:
                    self._waiting[driver] = asked
                else:
                    del self._waiting[driver]
                    _cut(driver)


def _cut(driver: psycopg.Connection[Any]) -> None:
    """Let the thread that waits for the connection find it closed."""
    if driver.closed:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(driver.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


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
    """Return whether a server holds the corpus, which may be lost and come back."""
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


# Calls that outlast their server: one that was lost is waited for, and the call made again.

# An outage that lasts longer is announced.
ANNOUNCED_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_SOON = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many clients", "connection slots")
_log = logging.getLogger(__name__)

Kind = TypeVar("Kind")
Method = TypeVar("Method", bound=Callable[..., object])


class Patient(Protocol):
    """Calls that wait for a lost server: the corpus's location, and the seconds to wait."""

    patience: float

    @property
    def location(self) -> str:
        """The corpus, as messages name it."""


def waiting(method: Method) -> Method:
    """Let a method, which is one transaction, be called again until the server that was lost is back.

    Raises:
        CorpusError: it was not back within ``patience`` seconds.
    """

    @functools.wraps(method)
    def call(self: Patient, *args: Any, **kwargs: Any) -> object:
        outage: Outage | None = None
        while True:
            try:
                result = method(self, *args, **kwargs)
            except CorpusGone as gone:
                outage = outage or Outage(self.location, self.patience)
                outage.wait(gone)
            else:
                if outage is not None:
                    outage.end()
                return result

    return cast(Method, call)


def survives_outages(kind: type[Kind]) -> type[Kind]:
    """Let every public method of a class wait (`waiting`), but for generators: what these call waits."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.isgeneratorfunction(method):
            setattr(kind, name, waiting(method))
    return kind


def once_it_is_up(opened: Callable[[], None], location: str, patience: float) -> None:
    """Call a function, again and again while the server says that it is starting or stopping, or is overrun.

    Another outage ends it at once: at first, a wrong name is likelier than a server that will be there soon.
    """
    outage = Outage(location, patience)
    while True:
        try:
            return opened()
        except CorpusGone as gone:
            if not any(words in str(gone) for words in _SOON):
                raise
            outage.wait(gone)


class Outage:
    """A server that is not there since now."""

    def __init__(self, location: str, patience: float) -> None:
        self._location, self._patience = location, patience
        self._began, self._pause, self._announced = time.monotonic(), _FIRST_PAUSE, False

    def wait(self, gone: CorpusGone) -> None:
        """Wait a little, longer each time; say so once it has taken long.

        Raises:
            CorpusError: it has taken too long.
        """
        waited = time.monotonic() - self._began
        if waited >= self._patience:
            raise CorpusError(f"{str(gone).rstrip('.')} (waited for {_seconds(waited)}).") from gone
        if waited + self._pause >= ANNOUNCED_SECONDS and not self._announced:
            self._announced = True
            _log.warning(
                "The corpus %s does not answer; waiting up to %s for it ...", self._location, _seconds(self._patience)
            )
        time.sleep(min(self._pause, self._patience - waited))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def end(self) -> None:
        """Say that the server is back, if it was said that it is not there."""
        if self._announced:
            _log.warning(
                "The corpus %s answers again after %s.", self._location, _seconds(time.monotonic() - self._began)
            )


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
