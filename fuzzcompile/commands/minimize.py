"""Minimization of one case file or stored finding: judge it, then search for a smaller case in a worker."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from fuzzcompile.campaign.drawing import recipe_of
from fuzzcompile.casefiles import read_case_file
from fuzzcompile.commands.pooled import PooledTools
from fuzzcompile.commands.triage import triage_files
from fuzzcompile.contract import ReportJson, told
from fuzzcompile.corpus import CaseRecord, Store
from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.generation import Profile
from fuzzcompile.judging.probe import Keep, Target
from fuzzcompile.reduction.evaluating import guarded
from fuzzcompile.reduction.minimize import minimize as reduce_case
from fuzzcompile.reduction.outcome import Tally
from fuzzcompile.reduction.search import Budget, Progress
from fuzzcompile.signatures import source_hash
from fuzzcompile.worker.conditions import Conditions
from fuzzcompile.worker.minimize import job_of
from fuzzcompile.worker.pool import LEAST_THREADS, open_pool
from fuzzcompile.worker.reductions import CONCLUDING, CONFIRMING, LEAST_SEARCH, Minimized


@dataclass(frozen=True)
class Subject:
    """A case to minimize: its source and report, and its recipe and finding where the corpus has them."""

    source: str
    report: ReportJson
    recipe: CaseRecord | None = None
    finding: str | None = None

    @property
    def drawn_as(self) -> tuple[bytes | None, Profile]:
        """The recipe's choices, and the profile without which they mean nothing; no choices where there is none."""
        return (None, Profile()) if self.recipe is None else recipe_of(self.recipe.choices, self.recipe.spec)


def subject_of_file(path: Path, store: Store | None, conditions: Conditions) -> Subject | None:
    """Judge the case file; None if it shows no bug.

    Raises:
        CaseError: the file is not a case.
        EnvironmentUnfit: it could not be judged.
    """
    report = report_on_file(path, conditions)
    return _subject(path, store, report) if report["is_bug"] else None


def report_on_file(path: Path, conditions: Conditions) -> ReportJson:
    """Judge the case file.

    Raises:
        CaseError: the file is not a case.
        EnvironmentUnfit: it could not be judged.
    """
    (answer,) = triage_files([path], conditions)
    if answer.report is None:
        error = EnvironmentUnfit(answer.error or f"{path} could not be judged.")
        error.exit_status = answer.status
        raise error
    return answer.report


def subject_of_finding(store: Store, name: str) -> Subject:
    """A stored finding's best case.

    Raises:
        UsageError: the corpus has no such finding.
    """
    finding = store.finding(name)
    return Subject(finding.source, finding.report, store.case(finding.source_sha256), finding.public_id)


def subject_of_state(path: Path, store: Store | None, state: Path) -> Subject:
    """The case file at ``path`` with the report that an earlier search started from.

    Raises:
        UsageError: no search was started for this source with this torch.
    """
    subject = Subject(read_case_file(path).source, {"torch": torch.__version__})
    return _subject(path, store, _kept(state, subject)[1])


def conditions_of(subject: Subject, conditions: Conditions) -> Conditions:
    """The conditions under which to minimize the subject: for the target of its report, unless another was asked for.

    A GPU that the user named takes the place of a target.
    """
    target = told(subject.report)
    if target is None or conditions.target is not None or conditions.device not in ("auto", "cpu"):
        return conditions
    return replace(conditions, device="cpu", target=target)


def _subject(path: Path, store: Store | None, report: ReportJson) -> Subject:
    source, signature = read_case_file(path).source, report.get("signature")
    if store is None:
        return Subject(source, report)
    finding = None if signature is None else store.finding_of(signature)
    return Subject(source, report, store.case(source_hash(source)), finding)


def minimize(
    subject: Subject,
    conditions: Conditions,
    *,
    seconds: float,
    compiles: int = 200,
    keep: Keep = "culprit",
    state: Path | None = None,
    resume: bool = False,
    for_issue: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Minimized:
    """Minimize the subject under its locked signature; candidates compile in a worker, which a crash may cost.

    A KeyboardInterrupt ends the search with the best case so far.

    Args:
        subject: the case.
        conditions: where to compile, what to veto and plant, and the limits of one candidate.
        seconds: time for everything: the start of a worker, the search, the reproducer. A search has ten seconds at
            least.
        compiles: how many compiles and screens the search may use, an earlier search's not counted.
        keep: what must stay: the verdict's kind, or the culprit too.
        state: a file that keeps what was learned, and is deleted once the search is finished.
        resume: continue the search that ``state`` holds.
        for_issue: make what an issue shows, too; of a stored finding it always is.
        on_progress: called after each candidate.

    Raises:
        EnvironmentUnfit: no worker can be started.
        UsageError: there is nothing to resume.
    """
    ends = time.monotonic() + seconds
    target = Target.of(subject.report, keep)
    tally = read_state(state, subject) if resume and state is not None else Tally()
    job = job_of(
        subject.source,
        subject.report,
        *subject.drawn_as,
        keep,
        for_issue=for_issue or subject.finding is not None,
    )
    job = replace(job, ends=ends)

    def progressed(progress: Progress) -> None:
        if state is not None:
            write_state(state, subject, tally)
        if on_progress is not None:
            on_progress(progress)

    if state is not None:
        write_state(state, subject, tally)
    reserved = CONCLUDING if job.for_issue else CONFIRMING
    budget = Budget(tally.tests + compiles, max(ends - reserved, time.monotonic() + LEAST_SEARCH))
    with open_pool(conditions, 1, least_threads=LEAST_THREADS) as pool:
        tools = PooledTools(pool, target, conditions.vetoes, subject.report)
        with guarded(lambda program: contextlib.nullcontext(tools.survives(program))):
            outcome = reduce_case(job, tools, budget, tally=tally, on_progress=progressed)
        pool.kill_workers()
    if state is not None and outcome.finished:
        state.unlink(missing_ok=True)
    return Minimized.of(outcome, subject.source)


def read_state(state: Path, subject: Subject) -> Tally:
    """Read the results of an earlier search for this subject.

    Raises:
        UsageError: there is no such file, or it is about another case.
    """
    return _kept(state, subject)[0]


def _kept(state: Path, subject: Subject) -> tuple[Tally, ReportJson]:
    """Read the results of an earlier search, and the report that it started from."""
    try:
        kept = json.loads(state.read_text(encoding="utf-8"))
        source, report = kept.pop("source"), kept.pop("report")
        if source != source_hash(subject.source) or report["torch"] != subject.report["torch"]:
            raise UsageError(f"{state} is about another case or another torch; leave out --resume.")
        return Tally(**kept), report
    except FileNotFoundError as error:
        raise UsageError(f"There is nothing to resume: no {state}.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{state} cannot be read; delete it and leave out --resume.") from error


def write_state(state: Path, subject: Subject, tally: Tally) -> None:
    """Keep what a search learned so far; if the file cannot be written, only --resume is lost."""
    kept = {**asdict(tally), "source": source_hash(subject.source), "report": subject.report}
    draft = state.with_name(f"{state.name}.part")
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(kept), encoding="utf-8")
        draft.replace(state)
