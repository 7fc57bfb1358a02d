"""The local pool of workers that a campaign, a triage or a reduction uses."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.campaign.events import WorkerActivity
from fuzzcompile.compiler.kernel_cache import shared_kernel_cache
from fuzzcompile.execution.device import assign, resolve
from fuzzcompile.execution.pool import WorkerPool
from fuzzcompile.worker.judge import WorkerSetup, prepare

# Enough for the cases that we draw, small enough that one that grows does not take the machine down.
DEFAULT_MEMORY = 8 * 2**30
DEFAULT_TIME = 180.0
# After this share of a case's time its attribution begins no further compile, so that a proof that takes long does
# not cost the finding.
ATTRIBUTION_SHARE = 0.6
# Compiled libraries stay loaded and dynamo keeps what it traced: a worker is renewed now and then.
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
    """Workers that are ready to judge cases on ``device`` (``auto``, ``cpu``, ``cuda`` or ``cuda:N``).

    The processors are shared out among them as threads, at least ``least_threads`` (if there are as many) to each.

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


def activity(pool: WorkerPool) -> list[WorkerActivity]:
    """What the pool's workers do, for display."""
    now = time.monotonic()
    return [
        WorkerActivity(
            state.slot,
            state.device,
            state.task if state.ready else state.task or "starting",
            now - state.busy_since if state.busy_since is not None else 0.0,
        )
        for state in pool.workers()
    ]
