"""Minimising one case or stored finding: judge it, shrink it in a worker, keep the reproducer."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.campaign.pool import Limits, open_pool
from fuzzcompile.capture.loading import defines_make
from fuzzcompile.case import source_hash
from fuzzcompile.commands.triage import triage_files
from fuzzcompile.corpus import CaseRecord, Reproducer, Store
from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.execution.pool import (
    RemoteError,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerPool,
    WorkerStartFailed,
    WorkerTimeout,
)
from fuzzcompile.generation import Profile, StaleRecipe
from fuzzcompile.judging.probe import Keep, Target
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.jobs import Capture
from fuzzcompile.reduction.minimiser import minimise as reduce_case
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.search import Budget, Probed, Progress, Tally
from fuzzcompile.reduction.writing import Written
from fuzzcompile.worker.shrink import ProbeTask, Shrunk, capture_programs, job_of, judge_source, probe_candidate

# Code for one thread is generated in another way than for several: a user's program is compiled for several.
_THREADS = 2
# Seconds that one candidate may take: it is a part of what was judged within the limits.
_CANDIDATE_TIME = 90.0


@dataclass(frozen=True)
class Subject:
    """What is to be minimised: a source with its report, and its recipe and finding where known."""

    source: str
    report: dict[str, Any]
    recipe: CaseRecord | None = None
    finding: str | None = None


def subject_of_file(
    path: Path,
    store: Store | None,
    *,
    device: str,
    vetoes: tuple[str, ...] = (),
    plants: Sequence[Path] = (),
    limits: Limits | None = None,
) -> Subject | None:
    """Judge the case file; None if it is no bug.

    Raises:
        CaseError: the file is no case.
        EnvironmentUnfit: it could not be judged.
    """
    (answer,) = triage_files([path], device=device, vetoes=vetoes, plants=plants, limits=limits)
    if answer.report is None:
        error = EnvironmentUnfit(answer.error or f"{path} could not be judged.")
        error.exit_status = answer.status
        raise error
    if not answer.report["is_bug"]:
        return None
    source = path.read_text(encoding="utf-8")
    recipe = store.case(source_hash(source)) if store is not None else None
    return Subject(source, answer.report, recipe, _finding_of(store, answer.report["signature"]))


def subject_of_finding(store: Store, name: str) -> Subject:
    """A stored finding's best case.

    Raises:
        UsageError: the corpus has no such finding.
    """
    found = store.finding(name)
    return Subject(found.source, found.report, store.case(found.source_sha256), found.public_id)


def minimise(
    subject: Subject,
    *,
    device: str,
    seconds: float,
    compiles: int = 200,
    keep: Keep = "culprit",
    vetoes: tuple[str, ...] = (),
    plants: Sequence[Path] = (),
    limits: Limits | None = None,
    state: Path | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Shrunk:
    """Make the subject small under its locked signature; candidates are compiled in a worker, which may be lost.

    A KeyboardInterrupt ends the search in good order with the best so far. With ``state``, what was learned is kept in
    that file, from which a search that is to ``resume`` goes on; it is deleted once a search is finished.

    Raises:
        EnvironmentUnfit: no worker can be started.
        UsageError: there is nothing to resume.
    """
    target = Target.of(subject.report, keep)
    tally = read_state(state, subject) if resume and state is not None else Tally()
    job = job_of(subject.source, subject.report, *drawn_as(subject.recipe), keep)

    def progressed(progress: Progress) -> None:
        if state is not None:
            write_state(state, subject, tally)
        if on_progress is not None:
            on_progress(progress)

    if state is not None:
        write_state(state, subject, tally)
    budget = Budget(tally.tests + compiles, time.monotonic() + seconds)
    with open_pool(device, 1, plants=plants, limits=limits, least_threads=_THREADS) as pool:
        tools = PooledTools(pool, target, vetoes, subject.report)
        outcome = reduce_case(job, tools, budget, tally=tally, on_progress=progressed)
        pool.kill_workers()
    if state is not None and outcome.finished:
        state.unlink(missing_ok=True)
    return Shrunk.of(outcome, subject.source)


@dataclass
class PooledTools:
    """Candidates are compiled in a pool's worker: one that crashes or hangs costs the worker and nothing else."""

    pool: WorkerPool
    target: Target
    vetoes: tuple[str, ...]
    report: dict[str, Any]
    thorough: bool = False

    def probe(self, candidate: Written, *, screen: bool) -> Probed:
        """A quick look; a lost worker is a crash or a time-out of the candidate."""
        task = ProbeTask(candidate, self.target, screen, self.thorough, self.vetoes)
        limit = _CANDIDATE_TIME if self.target.verdict != Verdict.TIMEOUT else None
        try:
            seen: Probed = self._done(probe_candidate, task, candidate.source, limit)
            return seen
        except WorkerStartFailed as error:
            raise EnvironmentUnfit(f"No worker can be started: {error}. Run `fuzzcompile doctor`.") from error
        except WorkerOutOfMemory:
            return Probed(False, False, "memory")
        except WorkerFailed as error:
            verdict = Verdict.TIMEOUT if isinstance(error, WorkerTimeout) else Verdict.CRASH
            return Probed(verdict == self.target.verdict, True, str(verdict))
        except RemoteError as error:
            return Probed(False, False, str(error).partition(":")[0])

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The captured graphs of a source; none where its worker is lost."""
        try:
            found: Sequence[Program] = self._done(capture_programs, source, source, None, capture)
        except (WorkerFailed, RemoteError):
            return []
        return found

    def judge(self, source: str) -> Mapping[str, Any]:
        """The full report on a source; of a crash there is no more to say than that it is one."""
        try:
            report: Mapping[str, Any] = self._done(judge_source, source, source, None, self.vetoes)
        except WorkerFailed as error:
            verdict = Verdict.TIMEOUT if isinstance(error, WorkerTimeout) else Verdict.CRASH
            return {**self.report, "verdict": str(verdict), "cost": {"compiles": 1}}
        except RemoteError as error:
            return {**self.report, "verdict": "invalid", "is_bug": False, "signature": None, "detail": str(error)}
        return report

    def become_thorough(self) -> None:
        """From now on, look as triage does."""
        self.thorough = True

    def _done(self, function: Callable[..., Any], task: Any, source: str, limit: float | None, *more: Any) -> Any:
        # What a script does to its process cannot be undone.
        spends = not defines_make(source)
        return self.pool.schedule(function, (task, *more), label="minimise", time_limit=limit, spends=spends).result()


def subject_of_state(path: Path, store: Store | None, state: Path) -> Subject:
    """The case file at ``path`` with the report that an earlier search began with.

    Raises:
        UsageError: there was no search for this text of it with this torch.
    """
    subject = Subject(path.read_text(encoding="utf-8"), {"torch": torch.__version__})
    report = _kept(state, subject)["report"]
    recipe = store.case(source_hash(subject.source)) if store is not None else None
    return Subject(subject.source, report, recipe, _finding_of(store, report["signature"]))


def read_state(state: Path, subject: Subject) -> Tally:
    """What an earlier search for this subject learned.

    Raises:
        UsageError: there is no such file, or it is of another case.
    """
    kept = _kept(state, subject)
    return Tally(kept["compiles"], kept["screens"], kept["thorough"], kept["answers"], kept["others"])


def _kept(state: Path, subject: Subject) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(state.read_text(encoding="utf-8"))
        if kept["source"] != source_hash(subject.source) or kept["report"]["torch"] != subject.report["torch"]:
            raise UsageError(f"{state} is of another case or another torch; leave out --resume.")
        Tally(kept["compiles"], kept["screens"], kept["thorough"], kept["answers"], kept["others"])
        return kept
    except FileNotFoundError as error:
        raise UsageError(f"There is nothing to resume: no {state}.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{state} cannot be read; delete it and leave out --resume.") from error


def write_state(state: Path, subject: Subject, tally: Tally) -> None:
    """Keep what a search learned so far; a place that cannot be written to costs the resuming only."""
    kept = {**asdict(tally), "source": source_hash(subject.source), "report": subject.report}
    draft = state.with_name(f"{state.name}.part")
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(kept), encoding="utf-8")
        draft.replace(state)


def keep(store: Store, finding: str, shrunk: Shrunk) -> None:
    """Store the reproducer with its finding."""
    store.add_reproducer(
        finding,
        Reproducer(
            source=shrunk.reproducer,
            sha256=source_hash(shrunk.reproducer),
            lines=shrunk.lines_after,
            kind=shrunk.how,
            confirmed=shrunk.confirmed,
            torch=shrunk.report["torch"],
            report=shrunk.report,
            neighbour=shrunk.neighbour,
        ),
    )


def drawn_as(recipe: CaseRecord | None) -> tuple[bytes | None, Profile]:
    """The choices of a stored recipe and the profile that they were drawn under: they mean nothing under another.

    No choices where there is no recipe, or another generator wrote it: its source is all there is then.
    """
    drawn = (recipe.spec or {}).get("profile") if recipe is not None else None
    choices = (recipe.choices or None) if recipe is not None else None
    if drawn is None:
        return choices, Profile()
    try:
        return choices, Profile.from_json(drawn)
    except StaleRecipe:
        return None, Profile()


def _finding_of(store: Store | None, signature: str) -> str | None:
    if store is None:
        return None
    return next((f.public_id for f in store.findings() if f.signature == signature), None)
