"""Clusters for tests: Dask in this process or in processes, and pools without torch on its workers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import fuzzcompile
from fuzzcompile.model.judge_task import NamedFunction, WorkerDescription
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.run.pool.worker_pool import TaskPool, WorkerPool

PATIENCE = 60  # seconds for anything that should be quick, on a machine that is busy
EVAL: Callable[[str], Any] = NamedFunction("builtins:eval")
PLAIN = NamedFunction("clustered:open_plain")
"""Opens worker processes that import no torch, which takes seconds."""


def open_plain(charter: Any, stack: Any) -> tuple[TaskPool, WorkerDescription]:
    """A pool of empty processes, in an environment that says which Dask worker process it belongs to."""
    pool = WorkerPool(charter.slots, memory_limit=400 * 2**20)
    return pool, WorkerDescription({"torch": installed_torch(), "machine": f"{os.getpid():08x}"}, "cpu")


def until(true: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return value


class Processes:
    """A scheduler and Dask workers in processes of their own, as users start them; they end with the block."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = dict(os.environ)
        paths = [Path(fuzzcompile.__file__).parent.parent, Path(__file__).parent]
        self._environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._started:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            process.kill()
            process.wait()

    def scheduler(self, *options: str, port: int = 0, **environment: str) -> subprocess.Popen[bytes]:
        """Start a scheduler, and wait for its file."""
        self.file.unlink(missing_ok=True)
        where = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--scheduler-file", str(self.file))
        process = self._start("-m", "dask", "scheduler", *where, *options, **environment)
        until(lambda: self.file.exists() and self.file.read_text().strip().endswith("}"))
        return process

    def worker(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a Dask worker without a nanny; with ``--nanny`` its process is the nanny."""
        alone = () if "--nanny" in options else ("--no-nanny",)
        where = ("--scheduler-file", str(self.file), "--host", "127.0.0.1", "--no-dashboard", "--nthreads", "1")
        return self._start("-m", "dask", "worker", *where, *alone, *options, **environment)

    def run(self, script: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Run a script."""
        return self._start(str(script), *arguments)

    @property
    def address(self) -> str:
        """The scheduler's."""
        return str(json.loads(self.file.read_text())["address"])

    def _start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.file.parent,
        )
        self._started.append(process)
        return process


@contextlib.contextmanager
def threads(workers: int = 2, slots: int = 1) -> Iterator[Any]:
    """A scheduler and Dask workers in this process: they start at once."""
    import distributed

    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=slots,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as cluster:
        yield cluster
