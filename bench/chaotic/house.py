"""A cluster with a database on this machine, all of whose processes may be killed, stopped or cut off."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from postgres_server import PostgresServer, free_port

from chaotic.proxy import Proxy

MARK = "FUZZCOMPILE_CHAOS"
_ACTIONS = ("kill", "stop", "cut")
# Nobody's network is cut but a worker's, the scheduler's and the database's: a nanny has none of its own.
_TARGETS = {"worker": _ACTIONS, "nanny": ("kill", "stop"), "scheduler": _ACTIONS, "postgres": _ACTIONS}
# Workers fail most: there are more of them.
_WEIGHTS = {"worker": 6, "nanny": 3, "scheduler": 1, "postgres": 2}


@dataclass(frozen=True)
class Blow:
    """Something that is done to a process: which, what, and for how many seconds (of a kill: until it is noticed)."""

    target: str
    action: str
    seconds: float
    number: int = 0

    def __str__(self) -> str:
        which = f" {self.number}" if self.target in ("worker", "nanny") else ""
        return f"{self.action} {self.target}{which}" + ("" if self.action == "kill" else f" for {self.seconds:.1f} s")


def blows(seed: int, number: int, workers: int) -> Iterator[Blow]:
    """Random blows; each kind of target gets each action at least once if there are 20 or more."""
    rng = random.Random(seed)
    every = [(target, action) for target, actions in _TARGETS.items() for action in actions]
    chosen = every[: number if number < 20 else len(every)]
    while len(chosen) < number:
        target = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        chosen.append((target, rng.choice(_TARGETS[target])))
    rng.shuffle(chosen)
    for target, action in chosen:
        yield Blow(target, action, rng.uniform(0.5, 5.0), rng.randrange(workers))


@dataclass
class House:
    """The processes, and the mark by which what is left of them is found.

    Attributes:
        folder: for logs and scratch files.
        workers: how many Dask workers, each below a nanny.
        server: the database server.
    """

    folder: Path
    workers: int
    server: PostgresServer
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.scheduler_port = free_port()
        self.to_scheduler = self._stack.enter_context(Proxy(self.scheduler_port))  # for the driver
        self.to_database = self._stack.enter_context(Proxy(self.server.port))
        self._lines = [self._stack.enter_context(Proxy(self.scheduler_port)) for _ in range(self.workers)]

    @property
    def environment(self) -> dict[str, str]:
        """For every process: the mark, and this checkout."""
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        return {**os.environ, MARK: self.mark, "PYTHONPATH": path, "PGPASSWORD": self.server.password}

    @property
    def address(self) -> str:
        """The scheduler's address for the driver."""
        return f"tcp://127.0.0.1:{self.to_scheduler.port}"

    def corpus(self, database: str) -> str:
        """The URL of a corpus for the driver, without the password."""
        return self.server.url(database, password=False, port=self.to_database.port)

    # -- life -------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Start what is not running: the scheduler, and the nannies with their workers."""
        self._tend("scheduler", "scheduler", "--port", str(self.scheduler_port), "--no-dashboard")
        for number, line in enumerate(self._lines):
            where = ("--local-directory", str(self.folder / f"scratch {number}"), "--no-dashboard")
            threads = ("--nthreads", "1", "--nworkers", "1", "--name", f"worker-{number}")
            self._tend(f"nanny {number}", "worker", f"tcp://127.0.0.1:{line.port}", "--nanny", *threads, *where)
        if not self.server.is_running:
            self.server.start()

    def _tend(self, name: str, *arguments: str) -> None:
        process = self._processes.get(name)
        if process is not None and process.poll() is None:
            return
        command = [sys.executable, "-m", f"distributed.cli.dask_{arguments[0]}", *arguments[1:]]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=self.environment
            )

    # -- blows ------------------------------------------------------------------------------------

    def strike(self, blow: Blow) -> None:
        """Do it, and for what does not kill, undo it after its time."""
        if blow.target == "postgres":
            self._strike_database(blow)
        elif blow.action == "cut":
            line = self.to_scheduler if blow.target == "scheduler" else self._lines[blow.number]
            line.cut()
            time.sleep(blow.seconds)
            line.mend()
        else:
            self._signal(blow)

    def _strike_database(self, blow: Blow) -> None:
        begin, end = {
            "kill": (self.server.kill, self.server.start),
            "stop": (self.server.pause, self.server.resume),
            "cut": (self.to_database.cut, self.to_database.mend),
        }[blow.action]
        begin()
        time.sleep(blow.seconds)
        end()

    def _signal(self, blow: Blow) -> None:
        process = self._victim(blow)
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            if blow.action == "kill":
                process.kill()
                return
            process.suspend()
            time.sleep(blow.seconds)
            process.resume()

    def _victim(self, blow: Blow) -> psutil.Process | None:
        name = "scheduler" if blow.target == "scheduler" else f"nanny {blow.number}"
        try:
            found = psutil.Process(self._processes[name].pid)
            if blow.target != "worker":
                return found
            # Beside the worker, a nanny has multiprocessing's tracker of resources.
            return next((child for child in found.children() if "spawn_main" in " ".join(child.cmdline())), None)
        except psutil.Error:  # it is just being started
            return None

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """End everything in order; return the command lines of what is left of it after 30 seconds."""
        for name, process in sorted(self._processes.items(), key=lambda item: item[0] == "scheduler"):
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15 if name == "scheduler" else 5)
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._stack.close()
        deadline = time.monotonic() + 30.0
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return left

    def left(self) -> list[str]:
        """The command lines of the processes that bear the mark, the caller's own aside."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == self.mark:
                    found.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}")
        return found
