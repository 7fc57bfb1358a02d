"""The local pool of workers on which campaigns, triage and minimization run."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fuzzcompile.compiler.kernel_cache import share_kernel_cache
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.run.pool.worker_pool import WorkerPool, WorkerState

# The start of a worker. Imports neither torch nor the compiler until it is called.


def start_worker(conditions: Conditions, threads: int) -> None:
    """Import what judging takes and prepare this process; the C++ toolchain is looked at meanwhile.

    Importing torch and its compiler makes 700,000 objects, none of them garbage to speak of, and the collector scans
    them again and again: a third of the processor time (measured: 3.3 s instead of 2.4 s). It is switched on again by
    :func:`~fuzzcompile.diagnosis.worker.judge.prepare`.
    """
    gc.disable()
    from fuzzcompile.compiler.kernel_cache import prepare_toolchain

    with prepare_toolchain(wanted=conditions.target is None):
        from fuzzcompile.diagnosis.worker.judge import prepare

        prepare(conditions, threads, lambda more: open_pool(conditions, more, least_threads=LEAST_THREADS))


# After this share of a case's time, attribution starts no further compile: a long proof must not cost the finding.
ATTRIBUTION_SHARE = 0.6
# Inductor generates other code for one thread than for several, and users compile for several.
LEAST_THREADS = 2
# Compiled libraries stay loaded and dynamo keeps its traces, so a worker is replaced after this many tasks.
_TASKS_PER_WORKER = 150
# By default, a thread that has done its part of an operator keeps its processor busy until the others have done theirs.
# Where anything else wants a processor (a compiler, another worker), small operators take 20 times as long (measured).
_WAITING = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}


def count_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_have_gpu() -> bool:
    """Return whether torch might find a GPU, without importing it: a CPU build, or no device, rules it out."""
    devices = Path("/dev")
    shown = any(any(devices.glob(name)) for name in ("nvidia[0-9]*", "kfd", "dxg")) or not devices.is_dir()
    return shown and not installed_torch().endswith("+cpu")


def choose_worker_count(device: str) -> int:
    """One worker per processor up to four on the CPU; two per GPU, so that one runs while one compiles."""
    if device == "cpu" or not may_have_gpu():
        return max(1, min(4, count_cpus()))
    from fuzzcompile.run.device import assign_device, resolve_device

    if resolve_device(device).type == "cuda":
        return min(count_cpus(), 2 * len({assign_device(device, number) for number in range(64)}))
    return max(1, min(4, count_cpus()))


def open_pool(
    conditions: Conditions,
    workers: int,
    *,
    least_threads: int = 1,
    share: float = 1.0,
    listener: Callable[[WorkerState], object] | None = None,
) -> WorkerPool:
    """Start workers that judge cases. Each finds its device by itself, so that this process needs no torch.

    They divide the ``share`` of the machine's processors that is theirs among them as threads, each of which has
    ``least_threads`` if there are as many. ``listener`` is called with what a worker says that it does.
    """
    processors = max(1, int(share * count_cpus()))
    threads = max(1, min(least_threads, processors), processors // workers)
    conditions = replace(conditions, plants=tuple(path.resolve() for path in conditions.plants))
    return WorkerPool(
        workers,
        time_limit=conditions.limits.seconds,
        memory_limit=conditions.limits.memory,
        max_tasks=_TASKS_PER_WORKER,
        initializer=start_worker,
        initargs=(conditions, threads),
        devices=(conditions.device,),
        environment={**share_kernel_cache(), **_WAITING},
        listener=listener,
    )
