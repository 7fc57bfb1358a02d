"""Minimization in a worker process: capture graphs, probe candidates, judge the result."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from fuzzcompile.capture.loading import load
from fuzzcompile.case import Case
from fuzzcompile.casefiles import defines_make
from fuzzcompile.contract import ReportJson
from fuzzcompile.contracts.parting import Parting
from fuzzcompile.contracts.promised import broken_again, judge_promised
from fuzzcompile.errors import FuzzcompileError
from fuzzcompile.execution.worker import current_device
from fuzzcompile.generation import Profile
from fuzzcompile.judging.probe import Keep, Target, probe
from fuzzcompile.judging.triage import triage
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.evaluating import evaluate, guarded
from fuzzcompile.reduction.jobs import Capture, Job
from fuzzcompile.reduction.minimize import minimize as reduce_case
from fuzzcompile.reduction.outcome import Probed
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.search import Budget
from fuzzcompile.reduction.writing import Written, case_source
from fuzzcompile.signatures import source_hash
from fuzzcompile.worker.asking import Asked
from fuzzcompile.worker.capturing import programs_of, written_out
from fuzzcompile.worker.causes import with_cause
from fuzzcompile.worker.isolation import isolated
from fuzzcompile.worker.leaving import leave_eager, leave_report
from fuzzcompile.worker.reductions import Minimized, MinimizeTask

# Compiling a candidate of one of these would take this worker down too.
_LOST = (Verdict.CRASH, Verdict.TIMEOUT)
_CRASHED = str(Verdict.CRASH)
# Words in sources whose graphs may be compiled with dynamic shapes.
_RESIZED = re.compile(r"\b(DYNAMIC|CALLS|dynamic|mark_dynamic)\b")


@dataclass(frozen=True)
class ProbeTask:
    """A candidate to compile; ``target`` is the failure that it must show."""

    candidate: Written
    target: Target
    screen: bool
    thorough: bool = False
    vetoes: tuple[str, ...] = ()


def minimize(task: MinimizeTask) -> Minimized:
    """Minimize a finding in this process; the result has the same signature.

    With ``task.left``, the search goes on where a lost worker stopped, without what that worker was asking; after
    several losses it ends there.
    """
    asked = Asked.resumed(task.left)
    tools = LocalTools(Target.of(task.report), task.vetoes, asked=asked)
    budget = Budget(task.tests, time.monotonic() + task.seconds)
    if task.report["verdict"] in _LOST or asked.is_over:
        budget = Budget(0)
    job = job_of(task.source, task.report, task.choices, task.profile, for_issue=True)
    with guarded(lambda program: asked.eager(case_source(program))):
        return Minimized.of(reduce_case(job, tools, budget, tally=asked.tally), task.source)


def job_of(
    source: str,
    report: ReportJson,
    choices: bytes | None,
    profile: Profile,
    keeps: Keep = "culprit",
    *,
    for_issue: bool = False,
) -> Job:
    """The reduction of a source with that report; ``choices`` and ``profile`` are its recipe."""
    return Job(
        source,
        report,
        choices=choices,
        profile=profile,
        is_case=defines_make(source),
        screens=Target.of(report).screens,
        resizes=_RESIZED.search(source) is not None,
        keeps=keeps,
        for_issue=for_issue,
    )


@dataclass
class LocalTools:
    """Tools that compile in this process: a crash ends it, and ``asked`` keeps the state of the search."""

    target: Target
    vetoes: tuple[str, ...] = ()
    thorough: bool = False
    asked: Asked = field(default_factory=Asked)

    def probe(self, candidate: Written, *, screen: bool) -> Probed:
        """Find whether and how a candidate fails, from one compile; one that killed a worker does not match."""
        with self.asked.about(f"{'screen' if screen else 'compile'} {candidate.digest}") as survives:
            if not survives:
                return Probed(False, False, _CRASHED, 0, 0)
            return probe_candidate(ProbeTask(candidate, self.target, screen, self.thorough, self.vetoes))

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The captured graphs of a source."""
        with self.asked.about(f"{capture} {source_hash(source)}") as survives:
            return capture_programs(source, capture) if survives else []

    def judge(self, source: str) -> ReportJson:
        """Return the full report on a source; for one that killed a worker, a report without a bug to keep."""
        with self.asked.about(f"judge {source_hash(source)}") as survives:
            if not survives:
                return {"verdict": _CRASHED, "is_bug": False, "signature": None}
            return judge_source(source, self.vetoes, self.target.causes)

    def become_thorough(self) -> None:
        """Refine the verdicts of all further probes as triage does."""
        self.thorough = True


def probe_candidate(task: ProbeTask) -> Probed:
    """Compile a candidate in this process. One that cannot run at all does not match."""
    device = torch.device(current_device())
    with written_out(task.candidate) as path, isolated():
        try:
            if task.target.promise is not None:
                return _promise_probed(task, task.target.promise, load(path, device), device)
            result = probe(
                load(path, device),
                device,
                vetoes=task.vetoes,
                screen=task.screen,
                thorough=task.thorough,
                target=task.target,
                on_eager=leave_eager,
            )
        except MemoryError:
            raise
        except Exception as error:  # statements were removed from the source: it may fail anywhere, in any way
            return Probed(False, False, type(error).__name__, 0, 0)
    return Probed(task.target.matches(result), result.is_bug, str(result.verdict), result.compiles, result.screens)


def _promise_probed(task: ProbeTask, wanted: str, case: Case, device: torch.device) -> Probed:
    """Return whether a candidate breaks the promise of equal bits ``wanted`` where the target does."""
    promise, compiles = broken_again(case, device, wanted, vetoes=task.vetoes)
    if promise is None:
        return Probed(False, False, str(Verdict.ROUNDING), compiles)
    return Probed(_is_of(task.target, promise.first), True, task.target.verdict, compiles)


def _is_of(target: Target, first: Parting | None) -> bool:
    """Return whether bits part first where the target says, if it says where."""
    if target.keep == "verdict" or not target.named:
        return True
    culprit = first.culprit() if first is not None else None
    return culprit is not None and culprit.stage == target.stage and culprit.family in target.families


def run_eagerly(program: Program) -> None:
    """Run a program in eager mode, which may end this process. Exceptions are ignored."""
    evaluate(program)


def judge_source(source: str, vetoes: tuple[str, ...] = (), causes: tuple[str, ...] = ()) -> ReportJson:
    """The full report on a source; that without a cause is left before the search for it, as in `Progress`.

    Args:
        source: the case.
        vetoes: rewrites to refuse.
        causes: fingerprints to try first.
    """
    device = torch.device(current_device())
    with written_out(Written(source, {})) as path, isolated():
        case = load(path, device)
        triaged = triage(case, device, vetoes=vetoes, error_maps=True, on_eager=leave_eager)
        leave_report(cast(ReportJson, triaged.to_json()))  # the programs that are tried next may end this process
        report = with_cause(triaged, case, device, vetoes=vetoes, known=causes)
        report = judge_promised(case, device, report, vetoes=vetoes, deadline=None)
        return cast(ReportJson, report.to_json())


def capture_programs(source: str, capture: Capture = "static") -> list[Program]:
    """The graphs of a source as programs (:func:`~fuzzcompile.worker.capturing.programs_of`)."""
    device = torch.device(current_device())
    with written_out(Written(source, {})) as path, isolated():
        try:
            return programs_of(load(path, device), device, capture)
        except FuzzcompileError:
            return []
