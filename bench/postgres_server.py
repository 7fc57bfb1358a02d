"""A PostgreSQL server of one's own, in a temporary folder: for tests and benches, which also kill and stop it."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

USER = "fuzz"
_SECONDS = 60.0
# Nothing here has to survive a power cut.
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "60", "shared_buffers": "64MB"}


def binaries() -> Path | None:
    """The folder of ``initdb`` and ``pg_ctl``, the newest where there are several; None where there is none."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


def lacking() -> str | None:
    """Why no server can be started here, None if one can."""
    if binaries() is None:
        return "needs PostgreSQL's initdb and pg_ctl (Debian: postgresql)"
    try:
        import psycopg  # noqa: F401 (whether it is there)
    except ImportError:
        return "needs psycopg (pip install 'fuzzcompile[postgres]')"
    if os.geteuid() == 0 and _unprivileged() is None:
        return "PostgreSQL does not run as root, and there is no other user"
    return None


class PostgresServer:
    """A server on a free port of this machine, which asks for a password; gone at the end of the block.

    Args:
        settings: of ``postgresql.conf``, beside those that make it fast.
    """

    def __init__(self, **settings: str) -> None:
        found = binaries()
        assert found is not None, lacking()
        self._binaries, self._user = found, _unprivileged() if os.geteuid() == 0 else None
        self.password = secrets.token_hex(12)
        # Not in a folder of the caller's: the user who runs the server must be able to reach it.
        self.folder = Path(tempfile.mkdtemp(prefix="fuzzcompile-pg-"))
        self.port = free_port()
        self._settings = {**_SETTINGS, "unix_socket_directories": str(self.folder), **settings}
        self._made = 0

    def __enter__(self) -> Self:
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the server, however it fares, and remove its folder."""
        with contextlib.suppress(OSError, psutil.Error):
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- databases --------------------------------------------------------------------------------

    def url(self, database: str, *, password: bool = True, port: int | None = None) -> str:
        """The URL of a database, through another port if it is behind a proxy."""
        secret = f":{self.password}" if password else ""
        return f"postgresql+psycopg://{USER}{secret}@127.0.0.1:{port or self.port}/{database}"

    def create(self, template: str = "template1") -> str:
        """The name of a new database, with all that a template holds."""
        self._made += 1
        name = f"corpus_{self._made}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, database: str) -> None:
        """Remove a database, whoever is connected."""
        self.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        """Run a statement beside any transaction."""
        import psycopg

        with psycopg.connect(self.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    # -- life and death ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server, after a kill too; return when it answers."""
        deadline = time.monotonic() + _SECONDS
        while True:
            # What a killed server leaves goes away a moment later than the server.
            started = self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "30", "-l", str(self._log), "start")
            if started.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start: {started.stdout}\n{self._log.read_text()}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Shut the server down in order; its clients are cut off."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "fast", "-w", "stop")

    def kill(self) -> None:
        """Kill the server and all of its processes with SIGKILL."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the server with SIGSTOP: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        """Whether the server's first process is there."""
        return bool(self._processes())

    # -- how ----------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._user is not None:
            for path in (self.folder, secret):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        auth = ("-U", USER, "--auth", "scram-sha-256", "--pwfile", str(secret))
        made = self._run("initdb", "-D", str(self._data), *auth, "-E", "UTF8", "--locale", "C.UTF-8", "--no-sync")
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stdout}")
        secret.unlink()
        lines = {"port": str(self.port), "listen_addresses": "127.0.0.1", **self._settings}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in lines.items())

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        as_user = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}
        # A file, not a pipe: the server inherits it, and a pipe would not end with pg_ctl.
        with tempfile.TemporaryFile("w+") as said:
            command: Sequence[str] = [str(self._binaries / program), *arguments]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self.folder, check=False,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}, **as_user,
            )  # fmt: skip
            said.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, said.read())

    def _signal(self, number: signal.Signals) -> None:
        # The first process first: it would start others anew.
        processes = self._processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number is signal.SIGKILL:
            psutil.wait_procs(processes, timeout=10)

    def _processes(self) -> list[psutil.Process]:
        try:
            first = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
            return [first, *first.children()] if str(self._data) in " ".join(first.cmdline()) else []
        except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
            return []


def _unprivileged() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
