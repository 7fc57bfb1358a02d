"""How a worker process prepares itself and judges a case. Tasks and results are plain data."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from fuzzcompile.capture.loading import load
from fuzzcompile.case import Case
from fuzzcompile.compiler.dump import dump_ledger
from fuzzcompile.compiler.headers import share_headers
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.settings import compile_in_process, drop_broken_kernels
from fuzzcompile.compiler.target.process import assume
from fuzzcompile.contract import ReportJson
from fuzzcompile.contracts.bitwise import judge_bitwise, unjudged_contract
from fuzzcompile.contracts.settings import under_contract
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.attention_backends import MATH_ONLY, math_only
from fuzzcompile.execution.device import Numerics, seed_everything
from fuzzcompile.execution.footprint import refuse_oversized
from fuzzcompile.execution.lost_gpu import lost_gpu
from fuzzcompile.execution.worker import current_device, restore_streams, retire
from fuzzcompile.judging.report import CoverageCount, Report
from fuzzcompile.judging.triage import triage
from fuzzcompile.plants import run_plants
from fuzzcompile.signatures import coarse
from fuzzcompile.targets import target_of
from fuzzcompile.worker.causes import known_causes, with_cause
from fuzzcompile.worker.conditions import Question
from fuzzcompile.worker.isolation import isolated

# Full garbage collections run after a case that took this many seconds, or after this many partial collections.
_LONG = 2.0
_SHORT_COLLECTIONS = 32


@dataclass(frozen=True)
class WorkerSetup:
    """What `prepare` needs.

    Attributes:
        plants: files to run.
        threads: torch's intra-op threads.
        target: the device that the compiler is told, by its name; None for the one that runs.
    """

    plants: tuple[str, ...] = ()
    threads: int = 1
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeTask(Question):
    """One case file to judge, and what is asked about it.

    Attributes:
        path: the case file.
        vetoes: rewrites to refuse.
        marker: a path that is created once eager has finished and gets the report once there is a verdict, so that
            both survive the loss of the worker.
        known: (signature, kind of verdict) pairs that need no further proof.
        seconds: time after which attribution starts no further compile.
        memory: bytes of this process beyond which a case is refused before it runs.
        screen: judge without generated code, and in full only if that shows a bug.
    """

    path: str
    vetoes: tuple[str, ...] = ()
    marker: str | None = None
    known: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None
    memory: int | None = None
    screen: bool = False


@dataclass(frozen=True)
class Judged:
    """A report in its JSON form, and what the compile covered."""

    report: ReportJson
    coverage: tuple[CoverageCount, ...] = ()
    screened: bool = False


def prepare(setup: WorkerSetup) -> None:
    """Set this process up: target, pinned numerics, threads, Inductor's patterns, plants, in that order."""
    if setup.target is not None:
        assume(target_of(setup.target))
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
    """Exempt everything loaded so far from garbage collection, and collect nothing while a case is judged.

    The compiler allocates millions of objects; scanning torch's own again and again takes a tenth of the time.
    :func:`judge_file` collects what each case leaves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _collect_garbage(seconds: float) -> None:
    """Collect after a case that took so many ``seconds``.

    The compiler's caches grow, so each full collection takes longer than the last. After a short case only the young
    generations are scanned, unless the last full collection was long ago.
    """
    full = seconds > _LONG or gc.get_count()[2] >= _SHORT_COLLECTIONS
    gc.collect(2 if full else 1)


def judge_file(task: JudgeTask) -> Judged:
    """Judge one case file on this worker's device.

    Raises:
        CaseError: the file is not a case, or the case cannot be run.
        EnvironmentUnfit: the case needs more than ``task.memory``, or the ledger cannot be written.
    """
    device = torch.device(current_device())
    progress = _Progress()
    try:
        return _judged(task, device, progress)
    except Exception as error:  # of any kind: a GPU that is lost fails in whatever comes next
        why = lost_gpu(device)
        if why is None:
            raise
        return progress.without_gpu(task, why, error)
    finally:
        if lost_gpu(device) is not None:
            retire()


@dataclass
class _Progress:
    """How far a case came before its GPU was lost: the report so far, if there was a verdict."""

    eager_done: bool = False
    report: Report | None = None

    def without_gpu(self, task: JudgeTask, why: str, error: Exception) -> Judged:
        """The verdict that was reached before.

        Raises:
            EnvironmentUnfit: there was none.
        """
        if self.report is not None:
            detail = "; ".join(part for part in (self.report.detail, f"what came after the verdict: {why}") if part)
            report = replace(self.report, confidence="low", detail=detail)
            return Judged(cast(ReportJson, report.to_json()), report.coverage, report.screened)
        when = "while it was judged" if self.eager_done else "in eager mode"
        raise EnvironmentUnfit(
            f"{task.path} could not be judged: {why}, {when}, and no run can follow in that process; mend the "
            "program (an index out of range?), or run it with CUDA_LAUNCH_BLOCKING=1 to see where."
        ) from error


def _judged(task: JudgeTask, device: torch.device, progress: _Progress) -> Judged:
    start = time.monotonic()
    deadline = None if task.seconds is None else start + task.seconds

    def eager_done() -> None:
        progress.eager_done = True
        _mark(task.marker, "")

    def verdict_reached(report: Report) -> None:
        progress.report = report
        _mark_verdict(task, report)

    with isolated(), contextlib.ExitStack() as exact:
        case = load(Path(task.path), device, call=task.call, module=task.module)
        restore_streams()  # the script may have closed them, and the compiler writes to them
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        case = replace(case, notes=(*case.notes, *_limits_noted(task)))
        if task.math_only:
            exact.enter_context(math_only())
        bitwise = task.contract == "bitwise"
        judged = under_contract(case) if bitwise else case

        def triaged(known: Collection[tuple[str, str]]) -> Report:
            return triage(
                judged,
                device,
                against=task.against,
                tolerances=task.tolerances,
                vetoes=task.vetoes,
                known=known,
                deadline=deadline,
                thorough=task.thorough and not bitwise,
                screen=task.screen,
                suspects=task.suspects,
                on_eager=eager_done,
                on_verdict=verdict_reached,
                on_ledger=lambda ledger: _dump(task.dump, ledger),
            )

        report = _of_its_cause(triaged, task, judged, device, deadline)
        if bitwise:
            report = judge_bitwise(judged, device, report, own=case, vetoes=task.vetoes, deadline=deadline)
    _collect_garbage(time.monotonic() - start)
    return Judged(cast(ReportJson, report.to_json()), report.coverage, report.screened)


def _of_its_cause(
    triaged: Callable[[Collection[tuple[str, str]]], Report],
    task: JudgeTask,
    case: Case,
    device: torch.device,
    deadline: float | None,
) -> Report:
    """The report with its cause; what looks like a known bug and has another cause is triaged like any new bug."""
    report = triaged(task.known)
    known = known_causes(report, task.known)
    if report.attribution.known and not known:
        return report  # of the known bug, no cause is known either
    report = with_cause(report, case, device, vetoes=task.vetoes, known=known, deadline=deadline)
    cause = report.cause
    if not report.attribution.known or cause is None or cause["fingerprint"] in known:
        return report
    fresh = triaged(())
    if fresh.attribution.culprit is None or fresh.attribution.culprit.signature != coarse(report.signature or ""):
        return with_cause(fresh, case, device, vetoes=task.vetoes, deadline=deadline)
    return replace(fresh, cause=cause, program=report.program)


def _limits_noted(task: JudgeTask) -> Iterator[str]:
    """What a reader of the report should know about how it was judged."""
    if task.math_only:
        yield MATH_ONLY
    if task.tolerances is not None:
        yield "limits: from a file of tolerances (--tolerances), not fuzzcompile's own"


def _mark_verdict(task: JudgeTask, report: Report) -> None:
    """Keep a report in the marker, for the case that the worker is lost; of a contract, nothing is known yet."""
    if task.contract == "bitwise":
        report = replace(report, confidence="low", contract=unjudged_contract("the worker was lost"))
    _mark(task.marker, json.dumps(report.to_json()))


def _dump(folder: str | None, ledger: Ledger) -> None:
    """Write the ledger as text into the folder, if there is one."""
    if folder is None:
        return
    try:
        dump_ledger(ledger, Path(folder))
    except OSError as error:
        raise EnvironmentUnfit(
            f"Cannot write the ledger into {folder}: {error.strerror}; name another folder."
        ) from error


def _mark(path: str | None, text: str) -> None:
    """Write the marker whole or not at all: its writer may be killed at any time, or fork and go on twice."""
    if path is not None:
        draft = Path(f"{path}.{os.getpid()}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
