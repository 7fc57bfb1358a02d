"""A server that is killed, restarted, stopped or cut off during a call: nothing is lost, nothing is stored twice."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from corpus_examples import ENVIRONMENT, FIRED, STREAM, TORCH, bug, campaign, case, report
from postgres_server import PostgresServer, lacking
from sqlalchemy import event, exc

from fuzzcompile.corpus import connection as liveness
from fuzzcompile.corpus import connection as outages
from fuzzcompile.corpus import databases
from fuzzcompile.corpus.models import Replay
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store

ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).with_name("writer_process.py")


@pytest.fixture(scope="module")
def fragile() -> Iterator[PostgresServer]:
    """A server that tests may harm."""
    if why := lacking():
        pytest.skip(why)
    with PostgresServer() as server:
        yield server


@pytest.fixture
def harmed(fragile: PostgresServer) -> Iterator[PostgresServer]:
    """The same, running again after the test."""
    yield fragile
    fragile.resume()
    if not fragile.is_running:
        fragile.start()


@pytest.fixture
def url(harmed: PostgresServer) -> str:
    location = harmed.url(harmed.create())
    Store.open(location).close()
    return location


def test_a_call_during_a_restart_waits(url: str, harmed: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    with Store.open(url, patience=60) as store:
        store.record(None, case("a = 1\n"), ENVIRONMENT, bug())
        harmed.kill()
        starter = threading.Timer(outages.ANNOUNCED_SECONDS + 0.5, harmed.start)
        starter.start()
        with caplog.at_level(logging.WARNING):
            recorded = store.record(None, case("b = 1\n"), ENVIRONMENT, bug())
        starter.join()
        assert (recorded.is_new_finding, store.finding("F1").hits) == (False, 2)
    said, after = caplog.messages
    assert "does not answer; waiting up to 60 s" in said and "answers again after" in after
    assert harmed.password not in caplog.text


def test_patience_ends_in_one_sentence(url: str, harmed: PostgresServer) -> None:
    with Store.open(url, patience=0.3) as store:
        harmed.stop()
        with pytest.raises(CorpusError, match=r"cannot be reached .*run again; what was stored is kept") as raised:
            store.summaries()
    assert "\n" not in str(raised.value) and harmed.password not in str(raised.value)


@contextlib.contextmanager
def lost_at_commit(store: Store, server: PostgresServer, *, times: int = 1) -> Iterator[None]:
    """The server commits a transaction, and the connection is lost before that is known."""
    left = [times]

    def committing(connection: object) -> None:
        if left[0] and store._engine.dialect.name == "postgresql":
            left[0] -= 1
            connection.connection.driver_connection.commit()  # type: ignore[attr-defined]
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'corpus%'")

    event.listen(store._engine, "commit", committing)
    try:
        yield
    finally:
        event.remove(store._engine, "commit", committing)
        assert left == [0], "nothing was lost"


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.record(None, case("new = 1\n"), ENVIRONMENT, bug("joint_graph:m.py:new")).is_new_finding,
        lambda store: store.start_campaign(campaign()),
        lambda store: store.add_replay("F1", Replay("0" * 64, TORCH, None, "failing", ["failing"], "BUG", 1.0)),
    ],
    ids=["a run", "a campaign", "a replay"],
)
def test_what_was_committed_before_the_loss_is_stored_once(
    url: str, harmed: PostgresServer, call: Callable[[Store], object]
) -> None:
    with Store.open(url, patience=60) as store:
        store.record(None, case(), ENVIRONMENT, bug())
        with lost_at_commit(store, harmed):
            answer = call(store)
        assert answer in (True, 1, None), "a finding that is new is said to be new"
        stats = store.stats()
        assert (stats.runs, stats.campaigns, stats.replays) in ((2, 0, 0), (1, 1, 0), (1, 0, 1))
        assert sum(finding.hits for finding in store.findings()) == stats.runs


@pytest.mark.slow
def test_a_stopped_server_is_noticed_and_waited_for(
    url: str, harmed: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(liveness, "_EVERY", 0.2)
    monkeypatch.setattr(databases, "_CONNECTION", {"connect_timeout": 2})
    with Store.open(url, patience=60) as store:
        store.counters()
        harmed.pause()
        threading.Timer(5, harmed.resume).start()
        store.record(None, case(), ENVIRONMENT, report())
        assert store.counters().runs == 1
    assert "does not answer" in caplog.text


class Line:
    """A way to the server that can be cut: connections end, and none is taken, until it is mended."""

    def __init__(self, port: int) -> None:
        self._port, self._is_cut, self._ends = port, False, list[socket.socket]()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_cut = False

    def _take(self) -> None:
        while True:
            near, _ = self._listening.accept()
            if self._is_cut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._port))
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
def test_a_cut_network_is_waited_for(url: str, harmed: PostgresServer) -> None:
    line = Line(harmed.port)
    with Store.open(url.replace(f":{harmed.port}/", f":{line.port}/"), patience=60) as store:
        key = store.start_campaign(campaign())
        for index in range(3):
            line.cut()
            threading.Timer(0.3, line.mend).start()
            store.record(key, case(f"{index}\n"), ENVIRONMENT, bug(), [FIRED])
            time.sleep(0.1)
        assert store.counters().runs == store.finding("F1").hits == store.coverage()[0].count == 3


def test_a_statement_that_takes_long_is_let_alone(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(liveness, "_EVERY", 0.1)
    with Store.open(url) as store, store._engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(1)")
    assert caplog.messages == []


def test_a_writer_that_stops_inside_a_transaction_locks_nobody_out(
    url: str, harmed: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_TRY", databases._TRY.replace("'30s'", "'1s'"))
    with Store.open(url) as stopped, Store.open(url, patience=60) as other:
        holding = stopped._writing.connect()
        holding.exec_driver_sql("SELECT 1")
        began = time.monotonic()
        other.record(None, case(), ENVIRONMENT, report())
        assert 0.5 < time.monotonic() - began < 30
        holding.invalidate()


def test_a_full_disk_is_no_outage(url: str) -> None:
    import psycopg

    full = exc.OperationalError("INSERT", {}, psycopg.errors.DiskFull("could not extend file: No space left on device"))
    assert not databases.is_outage(full)
    assert "make room and run again" in databases.explain_server("c", full)


def start(location: str, prefix: str, count: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(WRITER.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(WRITER), location, prefix, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": path})  # fmt: skip


def harm(server: PostgresServer, how: str) -> None:
    if how == "pause":
        server.pause()
        time.sleep(1.0)
        server.resume()
        return
    (server.kill if how == "kill" else server.stop)()
    time.sleep(0.5)
    server.start()


@pytest.mark.slow
def test_writers_outlast_a_server_that_is_killed_restarted_and_stopped(url: str, harmed: PostgresServer) -> None:
    writers = [start(url, str(number), 150) for number in range(3)]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline().startswith("started")
    for how in ("kill", "pause", "restart", "kill", "pause", "restart"):
        time.sleep(1.0)
        harm(harmed, how)
    said = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], said
    with Store.open(url, create=False) as store:
        assert [store.recorded_indices(f"{STREAM} {number}") for number in range(3)] == [set(range(150))] * 3
        stats = store.stats()
        assert (stats.runs, stats.cases, stats.campaigns) == (450, 450, 3)
        assert [finding.hits for finding in store.findings()] == [75, 75, 75]
        assert store.coverage()[0].count == 450


@pytest.mark.parametrize(
    ("said", "lost", "passes"),
    [
        ("SSL connection has been closed unexpectedly", False, True),
        ("SSL SYSCALL error: EOF detected", False, True),
        ("SSL error: unexpected eof while reading", False, True),
        ("certificate verify failed", True, True),
        ("SSL error: certificate verify failed", False, False),
        ("server does not support SSL, but SSL was required", False, False),
        ('connection failed: invalid sslmode value: "requires"', False, False),
    ],
)
def test_a_server_lost_behind_tls_passes_and_a_wrong_certificate_lasts(said: str, lost: bool, passes: bool) -> None:
    error = exc.OperationalError("SELECT 1", {}, Exception(said), connection_invalidated=lost)
    assert databases.is_outage(error) is passes
