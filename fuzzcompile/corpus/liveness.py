"""Cuts connections to a server that does not answer any more: stopped, frozen, or behind a network that lost it.

TCP notices a machine that is gone, but not a server that is stopped on a machine that runs: a statement would wait for
ever. A statement that takes long need not be one of those. The server is asked over a connection of its own, therefore.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Engine, event

from fuzzcompile.corpus import postgres

if TYPE_CHECKING:
    import psycopg


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
        """Whether the server takes a further connection, or refuses it with a word of its own."""
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
