"""What a task on a Dask cluster costs: the driver's and the scheduler's processor time, and the wall time.

    python bench/cluster.py [--workers 1 4] [--simulated 64 512] [--seconds 0 1] [--tasks N] [--rounds R]

A scheduler and Dask workers run in processes of their own on this machine. ``--workers`` are Dask workers with one slot
each and a real worker process behind each slot (without torch). ``--simulated`` are slots whose tasks sleep in a thread
of a Dask worker with 64 threads, so that hundreds fit on a small machine: what they show is the driver and the
scheduler, which see as many tasks in flight, though fewer workers. ``--seconds`` is how long a task sleeps. Each line
is one cluster with ``--tasks`` tasks that sleep 0 s, or ``--rounds`` tasks a slot that sleep longer; each task carries
5 kB there and 10 kB back, as cases and reports do, and the driver keeps as many in flight as a campaign would.

The driver saturates where its time a task is all that it has: its limit is the last column, in tasks a second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import distributed
import psutil

import fuzzcompile
from fuzzcompile.fuzz.cluster.cluster_messages import HostCharter
from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.judge_task import NamedFunction, WorkerDescription
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.run.pool.worker_pool import Call, TaskOptions, TaskPool, WorkerPool, WorkerState

T = TypeVar("T")

_THREADS = 64  # of a simulated Dask worker
_SOURCE, _REPORT = "s" * 5_000, "r" * 10_000
_PATIENCE = 300.0


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--simulated", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    processors = len(os.sched_getaffinity(0))
    print(
        f"{_processor()}, {processors} processors, Python {platform.python_version()}, Dask {distributed.__version__}"
    )
    print(f"{'slots':>16} {'sleep':>6} {'tasks':>6} {'wall':>7} {'a second':>9} {'of ideal':>9}", end="")
    print(f" {'driver':>9} {'scheduler':>10} {'limit':>8}")
    for slots, real in [*((slots, True) for slots in asked.workers), *((slots, False) for slots in asked.simulated)]:
        with cluster(slots, real=real) as (pool, scheduler):
            for seconds in asked.seconds:
                tasks = asked.tasks if not seconds else asked.rounds * slots
                measure(pool, 2 * slots, 0.0, scheduler)  # connections are opened
                print(f"{slots:>6} {'real' if real else 'simulated':>9} {measure(pool, tasks, seconds, scheduler)}")


@dataclass(frozen=True)
class Measured:
    """What so many tasks took; times in seconds."""

    seconds: float
    tasks: int
    slots: int
    wall: float
    driver: float
    scheduler: float

    def __str__(self) -> str:
        ideal = self.tasks * self.seconds / self.slots / self.wall
        driver, scheduler = (1000 * spent / self.tasks for spent in (self.driver, self.scheduler))
        share = f"{ideal:.0%}" if self.seconds else ""
        return (
            f"{self.seconds:>4g} s {self.tasks:>6} {self.wall:>5.1f} s {self.tasks / self.wall:>9.1f} {share:>9} "
            f"{driver:>6.2f} ms {scheduler:>7.2f} ms {1000 / driver:>6.0f}/s"
        )


def measure(pool: ClusterPool, tasks: int, seconds: float, scheduler: psutil.Process) -> Measured:
    """Run tasks as a campaign does: as many in flight as the pool wants, and each result taken when it is there."""
    begun, driver, other = time.monotonic(), time.process_time(), _spent(scheduler)
    running: set[Future[str]] = set()
    submitted = 0
    while submitted < tasks or running:
        while submitted < tasks and len(running) < pool.capacity:
            running.add(pool.schedule(_WORK, (seconds, _SOURCE), label=f"judge #{submitted}"))
            submitted += 1
        done, running = wait(running, timeout=_PATIENCE, return_when=FIRST_COMPLETED)
        assert done, "the cluster hangs"
        for future in done:
            assert future.result() == _REPORT
    wall = time.monotonic() - begun
    spent = time.process_time() - driver
    return Measured(seconds, tasks, pool.state.slots, wall, spent, _spent(scheduler) - other)


@contextmanager
def cluster(slots: int, *, real: bool) -> Iterator[tuple[ClusterPool, psutil.Process]]:
    """A scheduler and Dask workers in processes of their own, the pool on them, and the scheduler's process."""
    threads = 1 if real else min(slots, _THREADS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "scheduler.json"
        where = ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file))
        scheduler = stack.enter_context(_process("scheduler", *where, "--port", "0"))
        _until(lambda: file.exists() and file.read_text().strip().endswith("}"))
        for _ in range(-(-slots // threads)):
            stack.enter_context(_process("worker", *where, "--no-nanny", "--nthreads", str(threads)))
        opens = NamedFunction("cluster:open_plain") if real else NamedFunction("cluster:open_simulated")
        address = ClusterAddress.parse(json.loads(file.read_text())["address"])
        pool = stack.enter_context(ClusterPool(address, Conditions(device="cpu"), opens=opens))
        pool.wait_for_worker(_PATIENCE)
        _until(lambda: pool.state.slots == slots)
        yield pool, scheduler


@contextmanager
def _process(command: str, *options: str) -> Iterator[psutil.Process]:
    paths = [str(Path(fuzzcompile.__file__).parent.parent), str(Path(__file__).parent)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", command, *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


# -- what runs on the Dask workers ------------------------------------------------------------------------------------


def work(seconds: float, source: str) -> str:
    """Take a while, and report."""
    assert source == _SOURCE
    time.sleep(seconds)
    return _REPORT


_WORK: Callable[[float, str], str] = NamedFunction("cluster:work")


def open_plain(charter: HostCharter, stack: ExitStack) -> tuple[TaskPool, WorkerDescription]:
    """Worker processes without torch."""
    del stack
    return WorkerPool(charter.slots), WorkerDescription({"torch": installed_torch()}, "cpu")


def open_simulated(charter: HostCharter, stack: ExitStack) -> tuple[TaskPool, WorkerDescription]:
    """No processes: tasks run in the threads of the Dask worker."""
    del stack
    return Inline(charter.slots), WorkerDescription({"torch": installed_torch()}, "cpu")


class Inline(TaskPool):
    """Runs tasks in the thread that schedules them."""

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def put(self, call: Call, label: str, options: TaskOptions) -> Future[Any]:
        """Run a task."""
        function, args, kwargs = call
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future

    @property
    def capacity(self) -> int:
        """The slots."""
        return self._slots

    def workers(self) -> list[WorkerState]:
        """Nobody looks."""
        return []

    def kill_workers(self) -> None:
        """There are none."""


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > deadline:
            sys.exit("the cluster did not come up")
        time.sleep(0.05)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
