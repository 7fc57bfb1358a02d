"""Minimization in a worker process: capture graphs, probe candidates, judge the result."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from fuzzcompile.diagnosis.bitwise.promises import find_broken_bits, judge_own_promises
from fuzzcompile.diagnosis.causes.search import add_cause
from fuzzcompile.diagnosis.engine import TriageProgress, triage
from fuzzcompile.diagnosis.probe import Keep, SignatureLock, probe_case
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.diagnosis.worker.judge import ask_for_processes, isolate_process, open_more
from fuzzcompile.diagnosis.worker.minimize_task import Answer, CandidateLost, LocalAsker, MinimizeTask
from fuzzcompile.diagnosis.worker.rank_processes import seat_ranks
from fuzzcompile.diagnosis.worker.worker_loss import leave_eager, leave_report
from fuzzcompile.model.contract import LaterCallJson, ReportJson
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.capture.whole_script import load_later_call
from fuzzcompile.programs.casefiles.case_file import count_processes, defines_make, read_case_file
from fuzzcompile.programs.ir.case_source import CaseText
from fuzzcompile.programs.ir.evaluation import evaluate, guard_runs
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.programs.scripts.reproducer import build_reproducer
from fuzzcompile.programs.shrink.minimize import minimize as reduce_case
from fuzzcompile.programs.shrink.outcome import MinimizeResult, ProbeResult, Recipe
from fuzzcompile.programs.shrink.search import Capture, MinimizeJob, SearchBudget, capture_graph_programs, write_out
from fuzzcompile.run.case import Case
from fuzzcompile.run.pool.worker import get_current_device
from fuzzcompile.run.ranks import NotOnAllRanks, RankLost, RankRefused, leave_group

# Compiling a candidate of one of these would take this worker down too.
_LOST = (Verdict.CRASH, Verdict.TIMEOUT)
# Words in sources whose graphs may be compiled with dynamic shapes.
_RESIZED = re.compile(r"\b(DYNAMIC|CALLS|dynamic|mark_dynamic)\b")
# Seconds for the processes of one candidate, of which a collective waits for half, and after which one is ended.
_RANK_SECONDS, _MOST_RANK_SECONDS = 40.0, 60.0


def minimize(task: MinimizeTask) -> MinimizeResult:
    """Minimize a finding in this process; the result has the same signature.

    With ``task.left``, the search goes on where a lost worker stopped, without what that worker was asking; after
    several losses it ends there.
    """
    asked = LocalAsker.resume(task.left)
    tools = CandidateTools(asked, SignatureLock.of(task.report), task.report, task.vetoes)
    budget = SearchBudget(task.tests, time.monotonic() + task.seconds)
    if task.report["verdict"] in _LOST or asked.is_over:
        budget = SearchBudget(0)
    job = make_job(task.source, task.report, task.recipe, for_issue=True)
    with guard_runs(asked.guard_eager):
        return reduce_case(job, tools, budget, tally=asked.tally)


def make_job(
    source: str, report: ReportJson, recipe: Recipe | None, keeps: Keep = "culprit", *, for_issue: bool = False
) -> MinimizeJob:
    """The reduction of a source with that report."""
    call = _read_call(report)
    return MinimizeJob(
        source,
        report,
        recipe=recipe,
        is_case=defines_make(source),
        screens=SignatureLock.of(report).screens,
        resizes=_RESIZED.search(source) is not None or bool(call and call["dynamic"]),
        keeps=keeps,
        nproc=count_processes(source),
        for_issue=for_issue,
    )


def _read_call(report: ReportJson) -> LaterCallJson | None:
    return report.get("evidence", {}).get("call")


class Asker(Protocol):
    """The place where a minimization compiles: this process, or a worker of a pool."""

    def ask(self, step: Callable[[], Answer], *, name: str, source: str, limited: bool = False) -> Answer:
        """Run a step, which can be pickled and is called ``name``, of the program ``source``, and return its answer.

        ``limited``: it is one of many, each with little time.

        Raises:
            CandidateLost: it took its process down, now or before.
        """

    def guard_eager(self, program: Program) -> AbstractContextManager[bool]:
        """Whether a process survives the eager run of a program, as far as is known."""


@dataclass
class CandidateTools:
    """The steps of a minimization, wherever they run: probe a candidate, capture its graphs, judge the result.

    ``report`` is the one on the case that is minimized, and ``target`` the failure to keep.
    """

    asker: Asker
    target: SignatureLock
    report: ReportJson
    vetoes: tuple[str, ...] = ()
    thorough: bool = False

    def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
        """Find whether and how a candidate fails, from one compile; a lost process is a crash or a time-out."""
        step = partial(
            probe_candidate,
            candidate,
            self.target,
            screen=screen,
            thorough=self.thorough,
            vetoes=self.vetoes,
            call=_read_call(self.report),
        )
        name = f"{'screen' if screen else 'compile'} {candidate.digest}"
        limited = self.target.verdict != Verdict.TIMEOUT
        try:
            return self.asker.ask(step, name=name, source=candidate.source, limited=limited)
        except CandidateLost as lost:
            matches = lost.compiling and lost.verdict == self.target.verdict
            return ProbeResult(matches, lost.compiling, lost.verdict, int(lost.ran), 0)

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The captured graphs of a source; none if they cannot be had without losing the process."""
        try:
            step = partial(capture_programs, source, capture, _read_call(self.report))
            return self.asker.ask(step, name=f"{capture} {hash_source(source)}", source=source)
        except CandidateLost:
            return []

    def judge(self, source: str) -> ReportJson:
        """Return the full report on a source; if its process is lost, what it left, or its verdict alone."""
        try:
            step = partial(judge_source, source, self.vetoes, self.target.causes, _read_call(self.report))
            return self.asker.ask(step, name=f"judge {hash_source(source)}", source=source)
        except CandidateLost as lost:
            if lost.report is not None:
                return lost.report
            if lost.compiling:
                return {**self.report, "verdict": lost.verdict, "cost": {"compiles": 1}}
            return {**self.report, "verdict": "invalid", "is_bug": False, "signature": None, "detail": lost.detail}

    def write(self, source: str, report: ReportJson) -> str | None:
        """Write the reproducer of a case that several processes run; None if none can be written."""
        try:
            return self.asker.ask(
                partial(write_together, source, report), name=f"write {hash_source(source)}", source=source
            )
        except CandidateLost:
            return None

    def become_thorough(self) -> None:
        """Refine the verdicts of all further probes as triage does."""
        self.thorough = True

    def loosen(self) -> None:
        """Let further probes hold a candidate by the kind of its verdict, whatever they suspect."""
        self.target = replace(self.target, keep="verdict")


def probe_candidate(
    candidate: CaseText,
    target: SignatureLock,
    *,
    screen: bool = False,
    thorough: bool = False,
    vetoes: tuple[str, ...] = (),
    call: LaterCallJson | None = None,
) -> ProbeResult:
    """Compile a candidate, which must show ``target``, in this process. One that cannot run at all does not match.

    Of a script, ``call`` is compiled, by default its first.
    """
    try:
        with _open_candidate(candidate, call, hurried=True) as (case, device):
            if target.promise is not None:
                promise, compiles = find_broken_bits(case, device, target.promise, vetoes=vetoes)
                if promise is None:
                    return ProbeResult(False, False, str(Verdict.ROUNDING), compiles)
                culprit = promise.first.culprit if promise.first is not None else None
                alike = culprit is not None and culprit.stage == target.stage and culprit.family in target.families
                free = target.keep == "verdict" or not target.named
                return ProbeResult(free or alike, True, target.verdict, compiles)
            result = probe_case(
                case, device, vetoes=vetoes, screen=screen, thorough=thorough, target=target, on_eager=leave_eager
            )
    except MemoryError:
        raise
    except Exception as error:  # statements were removed from the source: it may fail anywhere, in any way
        return ProbeResult(False, False, type(error).__name__, 0, 0)
    return ProbeResult(target.matches(result), result.is_bug, str(result.verdict), result.compiles, result.screens)


def run_eagerly(program: Program) -> None:
    """Run a program in eager mode, which may end this process. Exceptions are ignored."""
    evaluate(program)


@dataclass
class _JudgeProgress(TriageProgress):
    report: TriageReport | None = None

    def note_eager(self) -> None:
        """Note that eager mode has finished; a verdict without a culprit would stand for a case that has another."""
        leave_eager()

    def note_verdict(self, report: TriageReport) -> None:
        """Keep the verdict, should other processes of the case be lost."""
        self.report = report


@contextlib.contextmanager
def _open_candidate(
    candidate: CaseText, call: LaterCallJson | None, *, hurried: bool = False
) -> Iterator[tuple[Case, torch.device]]:
    """A candidate loaded, led by this process where several run it; ``hurried``: they wait for each other less long."""
    device = torch.device(get_current_device())
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(write_out(candidate))
        task = ask_for_processes(JudgeTask(path=str(path), seconds=_RANK_SECONDS if hurried else None))
        lead = stack.enter_context(seat_ranks(task, open_more, most=_MOST_RANK_SECONDS if hurried else None))
        stack.enter_context(isolate_process())
        stack.callback(leave_group)
        case = _load(path, device, call)
        stack.enter_context(lead())
        yield case, device


def _load(path: Path, device: torch.device, call: LaterCallJson | None) -> Case:
    file = read_case_file(path)
    return load(file, device) if call is None or file.kind == "case" else load_later_call(file, device, call)


def judge_source(
    source: str, vetoes: tuple[str, ...] = (), causes: tuple[str, ...] = (), call: LaterCallJson | None = None
) -> ReportJson:
    """The full report on a source, ``causes`` (fingerprints) tried first; that without a cause is left for a loss."""
    progress = _JudgeProgress()
    try:
        with _open_candidate(CaseText(source, {}), call) as (case, device):
            task = JudgeTask(vetoes=vetoes, error_maps=True)
            triaged = triage(case, device, task, progress=progress)
            leave_report(triaged.to_json())  # the programs that are tried next may end this process
            report = add_cause(triaged, case, device, vetoes=vetoes, known=causes)
            report = judge_own_promises(case, device, report, vetoes=vetoes, deadline=None)
    except (RankLost, RankRefused, NotOnAllRanks) as error:
        if progress.report is None:
            raise CandidateLost(str(Verdict.INVALID), str(error)) from error
        report = replace(progress.report, confidence="low")
    return replace(report, call=None if defines_make(source) else call).to_json()


def write_together(source: str, report: ReportJson) -> str | None:
    """The reproducer of a case, chosen by eager runs of all processes that run it; None if they cannot make them."""
    try:
        with _open_candidate(CaseText(source, {}), None) as (case, _):
            return build_reproducer(source, report, led=case)
    except Exception:  # of eager mode, which may raise anything once statements are gone, or of a lost process
        return None


def capture_programs(source: str, capture: Capture = "static", call: LaterCallJson | None = None) -> list[Program]:
    """The graphs of a source as programs (:func:`~fuzzcompile.programs.shrink.search.capture_graph_programs`).

    None of a case that several processes run: a program has no group.
    """
    if count_processes(source) is not None:
        return []
    try:
        with _open_candidate(CaseText(source, {}), call) as (case, device):
            return capture_graph_programs(case, device, capture)
    except FuzzcompileError:
        return []
