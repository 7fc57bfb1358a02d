"""The local pool of workers on which campaigns, triage and minimization run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.compiler.kernel_cache import shared_kernel_cache
from fuzzcompile.execution.device import assign, resolve
from fuzzcompile.execution.pool import WorkerPool
from fuzzcompile.worker.judge import WorkerSetup, prepare

# Enough for generated cases, small enough that a case that keeps growing does not take the machine down.
DEFAULT_MEMORY = 8 * 2**30
DEFAULT_TIME = 180.0
# After this share of a case's time, attribution starts no further compile: a long proof must not cost the finding.
ATTRIBUTION_SHARE = 0.6
# Inductor generates other code for one thread than for several, and users compile for several.
LEAST_THREADS = 2
# Compiled libraries stay loaded and dynamo keeps its traces, so a worker is replaced after this many tasks.
_TASKS_PER_WORKER = 150


@dataclass(frozen=True)
class Limits:
    """Time (seconds) and memory (bytes) that one case may take."""

    seconds: float = DEFAULT_TIME
    memory: int = DEFAULT_MEMORY


def available_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers(device: str) -> int:
    """One worker per processor up to four on the CPU; two per GPU, so that one runs while one compiles."""
    if resolve(device).type == "cuda":
        return min(available_cpus(), 2 * len(set(assign(device, 64))))
    return max(1, min(4, available_cpus()))


def open_pool(
    device: str, workers: int, *, plants: Sequence[Path] = (), limits: Limits | None = None, least_threads: int = 1
) -> WorkerPool:
    """Start workers that judge cases.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        workers: how many processes; the processors are divided among them as threads.
        plants: files that each worker runs before its first task, to plant bugs.
        limits: time and memory of one task.
        least_threads: the fewest threads of a worker, if the machine has as many processors.

    Raises:
        EnvironmentUnfit: there is no such device.
    """
    limits = limits or Limits()
    processors = available_cpus()
    threads = max(1, min(least_threads, processors), processors // workers)
    setup = WorkerSetup(tuple(str(path.resolve()) for path in plants), threads)
    return WorkerPool(
        workers,
        time_limit=limits.seconds,
        memory_limit=limits.memory,
        max_tasks=_TASKS_PER_WORKER,
        initializer=prepare,
        initargs=(setup,),
        devices=assign(device, workers),
        environment=shared_kernel_cache(),
    )
