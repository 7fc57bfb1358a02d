"""Engines, transactions and their errors, for whichever database holds the corpus."""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, exc
from sqlalchemy.orm import Session

from fuzzcompile.corpus.databases import (
    explain_server,
    explain_sqlite,
    is_outage,
    lacks_rights,
    prepare_server,
    prepare_sqlite,
    reading,
    server_arguments,
    writing,
)
from fuzzcompile.corpus.location import POSTGRES, describe
from fuzzcompile.corpus.records import CorpusError, CorpusGone

if TYPE_CHECKING:
    import psycopg

P = ParamSpec("P")
T = TypeVar("T")

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
        for sending in ("before_cursor_execute", "commit", "rollback"):
            event.listen(engine, sending, self._sent)
        event.listen(engine, "after_cursor_execute", lambda connection, *_: self._forget(_driver(connection)))
        for ending in ("checkin", "invalidate"):
            event.listen(engine, ending, self._forget)

    def _sent(self, connection: Connection, *_: object) -> None:
        if connection.invalidated:
            return
        with self._lock:
            self._waiting[_driver(connection)] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="corpus-liveness", daemon=True)
                self._thread.start()

    def _forget(self, driver: object, *_: object) -> None:
        with self._lock:
            self._waiting.pop(cast("psycopg.Connection[Any]", driver), None)

    def _watch(self) -> None:
        """Run while anything waits; cut what has waited long for a server that is gone."""
        while True:
            time.sleep(_EVERY)
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                asked = time.monotonic()
                silent = [driver for driver, since in self._waiting.items() if asked - since > SILENT_SECONDS]
            alive = self._answers() if silent else True
            with self._lock:
                for driver in silent:
                    if self._waiting.get(driver, asked) > asked - SILENT_SECONDS:
                        continue  # it has answered, or is asked something else
                    self._waiting[driver] = asked
                    if not alive:
                        del self._waiting[driver]
                        if driver.closed:
                            continue
                        # The thread that waits for the connection finds it closed.
                        with suppress(OSError), socket.socket(fileno=os.dup(driver.fileno())) as line:
                            line.shutdown(socket.SHUT_RDWR)

    def _answers(self) -> bool:
        """Return whether the server takes a further connection, or refuses it with a word of its own."""
        import psycopg

        url = self._engine.url
        positional, named = self._engine.dialect.create_connect_args(url)
        try:
            psycopg.connect(*positional, **{**named, **server_arguments(url)}).close()
        except psycopg.Error as error:
            return "FATAL" in str(error)
        return True


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    return cast("psycopg.Connection[Any]", connection.connection.driver_connection)


def connect(url: URL, *, migrating: bool = False) -> Engine:
    """Return an engine; for ``migrating``, foreign keys of SQLite are off, because migrations rebuild tables there."""
    is_postgres = url.get_backend_name() == POSTGRES
    if is_postgres:
        try:
            import psycopg  # noqa: F401 (whether it is there)
        except ImportError as error:
            why = f"A corpus in PostgreSQL needs psycopg, which is missing ({error})"
            raise CorpusError(f"{why}: pip install 'fuzzcompile[postgres]'.") from error
    # Closing the last connection folds SQLite's log into the file: the migrating one closes at once.
    pool = {"poolclass": NullPool} if migrating else {}
    try:
        engine = create_engine(
            url,
            json_serializer=functools.partial(json.dumps, allow_nan=False),  # a NaN raises ValueError
            connect_args=server_arguments(url) if is_postgres else {},
            hide_parameters=True,  # an error would show a case's whole source
            **pool,
        )
    except (exc.ArgumentError, ImportError) as error:
        raise CorpusError(
            f"The corpus {describe(url)} needs a database driver that is not installed ({error}): "
            "give a path, or the URL of a PostgreSQL database, instead."
        ) from error
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine, foreign_keys=not migrating)
    elif is_postgres:
        prepare_server(engine)
        Watch(engine)
    return engine


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
        if isinstance(error, exc.ProgrammingError) and not lacks_rights(error):
            raise
        if url.get_backend_name() != POSTGRES:
            raise CorpusError(explain_sqlite(describe(url), str(error.orig))) from error
        kind = CorpusGone if is_outage(error) else CorpusError
        raise kind(explain_server(describe(url), error)) from error
    except sqlite3.Error as error:  # of our own statements, which SQLAlchemy does not see
        raise CorpusError(explain_sqlite(describe(url), str(error))) from error


# Calls that outlast their server: one that was lost is waited for, and the call made again.

# An outage that lasts longer is announced.
ANNOUNCED_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_SOON = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many clients", "connection slots")
_log = logging.getLogger(__name__)


def keep_trying(call: Callable[[], T], corpus: str, patience: float, *, opening: bool = False) -> T:
    """Call a function, which is one transaction, again and again until the server that was lost is back.

    When ``opening`` a corpus, only a server that says that it is starting or stopping, or is overrun, is waited for: at
    first, a wrong name is likelier than a server that will be there soon.

    Raises:
        CorpusError: it was not back within ``patience`` seconds.
    """
    began, pause, announced = 0.0, _FIRST_PAUSE, False
    while True:
        try:
            result = call()
        except CorpusGone as gone:
            if opening and not any(words in str(gone) for words in _SOON):
                raise
            began = began or time.monotonic()
            waited = time.monotonic() - began
            if waited >= patience:
                raise CorpusError(f"{str(gone).rstrip('.')} (waited for {_seconds(waited)}).") from gone
            if waited + pause >= ANNOUNCED_SECONDS and not announced:
                announced = True
                _log.warning("The corpus %s does not answer; waiting up to %s for it ...", corpus, _seconds(patience))
            time.sleep(min(pause, patience - waited))
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            if announced:
                _log.warning("The corpus %s answers again after %s.", corpus, _seconds(time.monotonic() - began))
            return result


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


class Transacting:
    """Calls of an open corpus, each of which is one transaction, made again after an outage.

    ``patience`` are the seconds that a lost server is waited for.
    """

    def __init__(self, engine: Engine, patience: float = 0.0) -> None:
        self._engine, self.patience = engine, patience
        self._reading, self._writing = reading(engine), writing(engine)

    @property
    def location(self) -> str:
        """The path, or the URL without its password: what to show, and to give to ``--corpus``."""
        return describe(self._engine.url)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that sees one state of the corpus; an outage ends it."""
        with explained_errors(self._engine.url), Session(self._reading) as session:
            yield session

    def write(self, function: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a function of a session returns, once what it wrote is on the disk."""

        def call() -> T:
            with explained_errors(self._engine.url), Session(self._writing) as session, session.begin():
                return function(session, *args, **kwargs)

        return keep_trying(call, self.location, self.patience)


def reads(method: Callable[Concatenate[Any, Session, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Give a method a session that sees one state of the corpus."""

    @functools.wraps(method)
    def call(self: Transacting, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def once() -> T:
            with self.read() as session:
                return method(self, session, *args, **kwargs)

        return keep_trying(once, self.location, self.patience)

    return call


def writes(method: Callable[Concatenate[Any, Session, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Give a method a session with the write lock, and commit what it did."""

    @functools.wraps(method)
    def call(self: Transacting, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.write(functools.partial(method, self), *args, **kwargs)

    return call
