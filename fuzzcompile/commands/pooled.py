"""Candidates of a minimization, compiled in the worker of a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from fuzzcompile.casefiles import defines_make
from fuzzcompile.contract import ReportJson
from fuzzcompile.execution.pool import RemoteError, WorkerFailed, WorkerOutOfMemory, WorkerPool, WorkerStartFailed
from fuzzcompile.judging.probe import Target
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.jobs import Capture
from fuzzcompile.reduction.outcome import Probed
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.writing import Written, case_source
from fuzzcompile.worker.leaving import left_behind
from fuzzcompile.worker.lost import unstartable, verdict_of
from fuzzcompile.worker.minimize import ProbeTask, capture_programs, judge_source, probe_candidate, run_eagerly

# Seconds that one candidate may take: less than the case did, which was judged within the limits.
_CANDIDATE_TIME = 90.0

Result = TypeVar("Result")


@dataclass
class PooledTools:
    """Tools that compile candidates in a pool's worker: one that crashes or hangs costs the worker and nothing else.

    A worker that is lost before eager has finished does not count as a fault of the compiler.
    """

    pool: WorkerPool
    target: Target
    vetoes: tuple[str, ...]
    report: ReportJson
    thorough: bool = False
    fatal: set[str] = field(default_factory=set)

    def survives(self, program: Program) -> bool:
        """Return whether a worker survives the program's eager run; a loss takes seconds, and comes once a program."""
        source = case_source(program)
        if source in self.fatal:
            return False
        try:
            self.pool.schedule(
                partial(run_eagerly, program), label="run", time_limit=_CANDIDATE_TIME, counts=False
            ).result()
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerFailed:
            self.fatal.add(source)
            return False
        except RemoteError:
            return True  # it cannot be sent, say: then it runs here, as far as it does
        return True

    def probe(self, candidate: Written, *, screen: bool) -> Probed:
        """Return whether and how a candidate fails; the loss of a worker after eager is its crash or time-out."""
        task = ProbeTask(candidate, self.target, screen, self.thorough, self.vetoes)
        limit = _CANDIDATE_TIME if self.target.verdict != Verdict.TIMEOUT else None
        try:
            return self._done(candidate.source, partial(probe_candidate, task), limit)
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerOutOfMemory:
            return Probed(False, False, "memory")
        except WorkerFailed as error:
            verdict, (compiling, _) = verdict_of(error), left_behind(error.left)
            return Probed(compiling and verdict == self.target.verdict, compiling, str(verdict))
        except RemoteError as error:
            return Probed(False, False, error.kind)

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The captured graphs of a source; none if its worker is lost."""
        try:
            return self._done(source, partial(capture_programs, source, capture))
        except (WorkerFailed, RemoteError):
            return []

    def judge(self, source: str) -> ReportJson:
        """Return the full report on a source; if the worker is lost, only its verdict is new."""
        try:
            return self._done(source, partial(judge_source, source, self.vetoes, self.target.causes))
        except WorkerFailed as error:
            compiling, report = left_behind(error.left)
            if report is not None:
                return report
            if compiling:
                return {**self.report, "verdict": str(verdict_of(error)), "cost": {"compiles": 1}}
            return self._no_bug(f"{error}, before eager had finished")
        except RemoteError as error:
            return self._no_bug(str(error))

    def become_thorough(self) -> None:
        """Probe as triage judges from now on."""
        self.thorough = True

    def _no_bug(self, detail: str) -> ReportJson:
        return {**self.report, "verdict": "invalid", "is_bug": False, "signature": None, "detail": detail}

    def _done(self, source: str, call: Callable[[], Result], limit: float | None = None) -> Result:
        # A script may change its process for good, so its worker runs nothing else.
        spends = not defines_make(source)
        return self.pool.schedule(call, label="minimize", time_limit=limit, spends=spends).result()
