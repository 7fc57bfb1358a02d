"""What worker processes do: judge a case, shrink a finding (`shrinking.py`). Plain data in, plain data out."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.capture.loading import load
from fuzzcompile.compiler.dump import dump_ledger
from fuzzcompile.compiler.headers import share_headers
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.settings import compile_in_process, drop_broken_kernels
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.device import Numerics, seed_everything
from fuzzcompile.execution.footprint import refuse_oversized
from fuzzcompile.execution.worker import current_device, restore_streams
from fuzzcompile.judging.report import CoverageCount
from fuzzcompile.judging.triage import triage
from fuzzcompile.plants import run_plants
from fuzzcompile.worker.isolation import isolated
from fuzzcompile.worker.shrink import ShrinkTask, Shrunk, shrink

__all__ = [
    "JudgeTask",
    "Judged",
    "ShrinkTask",
    "Shrunk",
    "WorkerSetup",
    "judge_file",
    "left_behind",
    "prepare",
    "shrink",
]

# When garbage is looked for everywhere: after a case of so many seconds, or so many collections that were not.
_LONG = 2.0
_SHORT_COLLECTIONS = 32


@dataclass(frozen=True)
class WorkerSetup:
    """How a worker prepares itself before its first task."""

    plants: tuple[str, ...] = ()
    threads: int = 1


@dataclass(frozen=True)
class JudgeTask:
    """One case file to judge.

    ``marker`` is a path that comes to exist once eager has finished, and holds the report as soon as
    there is a verdict: what is left of the case if its worker is lost later. ``known`` are the (signature, kind
    of verdict) pairs that need no proof any more. ``seconds`` is how long the whole may take before
    attribution begins no further compile. ``against`` is what compiled is compared with, ``call`` the call of a
    script that is the case (1 is the first), ``module`` the path of the submodule that is judged instead of the whole.
    A case that needs more than ``memory`` bytes of this process is refused before it is run.
    ``thorough`` spends further compiles on evidence, for which a campaign has no time. ``dump`` is a folder that every
    graph and rewrite of the judged compile is written into as text. With ``screen`` the case is judged without
    generated code, and in full only if that shows a bug. ``suspects`` names rewrites that the user asks about.
    """

    path: str
    vetoes: tuple[str, ...] = ()
    marker: str | None = None
    known: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None
    against: str = "eager"
    call: int | None = None
    module: str | None = None
    memory: int | None = None
    thorough: bool = False
    dump: str | None = None
    screen: bool = False
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A report in its JSON form, and what the compile covered."""

    report: dict[str, Any]
    coverage: tuple[CoverageCount, ...] = ()
    screened: bool = False


def prepare(setup: WorkerSetup) -> None:
    """Set this process up: pinned numerics, threads, Inductor's patterns, plants, in that order."""
    device = torch.device(current_device())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, setup.threads))
    Numerics().apply()
    compile_in_process()
    drop_broken_kernels()
    share_headers()
    initialise_patterns(device)
    run_plants([Path(path) for path in setup.plants])
    seed_everything(0)
    calm_collector()


def calm_collector() -> None:
    """Leave what is loaded now out of every garbage collection, and begin none while a case is judged.

    The compiler makes millions of objects, and going through torch's own again and again takes a tenth of the time.
    :func:`judge_file` collects what each case leaves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _collect_garbage(seconds: float) -> None:
    """Collect what a case has left that took so many ``seconds``.

    Going through everything takes longer with each case, for the compiler's caches grow. So after a short case only
    what is new is gone through, and everything after a long one, or when that was long ago.
    """
    everything = seconds > _LONG or gc.get_count()[2] >= _SHORT_COLLECTIONS
    gc.collect(2 if everything else 1)


def judge_file(task: JudgeTask) -> Judged:
    """Judge one case file on this worker's device."""
    start = time.monotonic()
    deadline = None if task.seconds is None else start + task.seconds
    device = torch.device(current_device())
    with isolated():
        case = load(Path(task.path), device, call=task.call, module=task.module)
        restore_streams()  # the compiler writes to them
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        report = triage(
            case,
            device,
            against=task.against,
            vetoes=task.vetoes,
            known=task.known,
            deadline=deadline,
            thorough=task.thorough,
            screen=task.screen,
            suspects=task.suspects,
            on_eager=lambda: _mark(task.marker, ""),
            on_verdict=lambda found: _mark(task.marker, json.dumps(found.to_json())),
            on_ledger=lambda ledger: _dump(task.dump, ledger),
        )
    _collect_garbage(time.monotonic() - start)
    return Judged(report.to_json(), report.coverage, report.screened)


def left_behind(marker: Path) -> tuple[bool, dict[str, Any] | None]:
    """Of a case whose worker was lost: whether eager had finished, and the report if there was a verdict."""
    try:
        text = marker.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False, None
    return True, json.loads(text) if text else None


def _dump(folder: str | None, ledger: Ledger) -> None:
    """Write the ledger down, if that was asked for."""
    if folder is None:
        return
    try:
        dump_ledger(ledger, Path(folder))
    except OSError as error:
        raise EnvironmentUnfit(
            f"Cannot write the ledger into {folder}: {error.strerror}; name another folder."
        ) from error


def _mark(path: str | None, text: str) -> None:
    """Write the marker whole or not at all: its writer may be killed at any time."""
    if path is not None:
        draft = Path(f"{path}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
