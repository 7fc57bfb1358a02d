"""The local pool of workers on which campaigns, triage and minimization run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fuzzcompile.compiler.kernel_cache import share_kernel_cache
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.tasks import WorkerSetup
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.run.pool import WorkerPool
from fuzzcompile.run.slot import WorkerState
from fuzzcompile.triage.worker.start import start

# After this share of a case's time, attribution starts no further compile: a long proof must not cost the finding.
ATTRIBUTION_SHARE = 0.6
# Inductor generates other code for one thread than for several, and users compile for several.
LEAST_THREADS = 2
# Compiled libraries stay loaded and dynamo keeps its traces, so a worker is replaced after this many tasks.
_TASKS_PER_WORKER = 150
# By default, a thread that has done its part of an operator keeps its processor busy until the others have done theirs.
# Where anything else wants a processor (a compiler, another worker), small operators take 20 times as long (measured).
_WAITING = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}


def available_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_have_gpu() -> bool:
    """Whether torch might find a GPU, without importing it: no build for the CPU does, nor one without a device."""
    devices = Path("/dev")
    shown = any(any(devices.glob(name)) for name in ("nvidia[0-9]*", "kfd", "dxg")) or not devices.is_dir()
    return shown and not installed_torch().endswith("+cpu")


def default_workers(device: str) -> int:
    """One worker per processor up to four on the CPU; two per GPU, so that one runs while one compiles."""
    if device == "cpu" or not may_have_gpu():
        return max(1, min(4, available_cpus()))
    from fuzzcompile.run.device import assign, resolve

    if resolve(device).type == "cuda":
        return min(available_cpus(), 2 * len(set(assign(device, 64))))
    return max(1, min(4, available_cpus()))


def open_pool(
    conditions: Conditions,
    workers: int,
    *,
    least_threads: int = 1,
    share: float = 1.0,
    listener: Callable[[WorkerState], object] | None = None,
) -> WorkerPool:
    """Start workers that judge cases. Each finds its device by itself, so that this process needs no torch.

    Args:
        conditions: the device, the target, the plants that each worker runs before its first task, the user's own
            passes and backend, and the limits of a task.
        workers: how many processes; the processors are divided among them as threads.
        least_threads: the fewest threads of a worker, if the machine has as many processors.
        share: the part of the machine's processors that is for these workers.
        listener: called with what a worker says that it does.
    """
    processors = max(1, int(share * available_cpus()))
    threads = max(1, min(least_threads, processors), processors // workers)
    plants = tuple(str(path.resolve()) for path in conditions.plants)
    setup = WorkerSetup(plants, threads, conditions.target, conditions.custom)
    return WorkerPool(
        workers,
        time_limit=conditions.limits.seconds,
        memory_limit=conditions.limits.memory,
        max_tasks=_TASKS_PER_WORKER,
        initializer=start,
        initargs=(setup,),
        devices=(conditions.device,),
        environment={**share_kernel_cache(), **_WAITING},
        listener=listener,
    )
