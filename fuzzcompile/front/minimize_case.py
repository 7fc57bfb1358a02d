"""Minimization of one case file or stored finding: judge it, then search for a smaller case in a worker."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from fuzzcompile.corpus.records import CaseRecord, public_id
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.probe import Keep, SignatureLock
from fuzzcompile.diagnosis.worker.file_triage import triage_files, triage_sources
from fuzzcompile.diagnosis.worker.local_pool import LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.minimization import CandidateTools, make_job, run_eagerly
from fuzzcompile.diagnosis.worker.minimize_task import CONCLUDING, CONFIRMING, LEAST_SEARCH, Answer, CandidateLost
from fuzzcompile.diagnosis.worker.worker_loss import choose_loss_verdict, make_start_error, read_left
from fuzzcompile.fuzz.generation.recipes import read_recipe
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions, Question
from fuzzcompile.model.contract import ReportJson, read_target
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit, FuzzcompileError, UsageError
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.programs.casefiles.case_file import count_processes, defines_make, read_case_file
from fuzzcompile.programs.ir.case_source import write_program
from fuzzcompile.programs.ir.evaluation import guard_runs
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.programs.scripts.issue_script import ReproducerResult, show, show_written
from fuzzcompile.programs.shrink.minimize import minimize as reduce_case
from fuzzcompile.programs.shrink.outcome import MinimizeResult, SearchTally
from fuzzcompile.programs.shrink.search import SearchBudget, SearchProgress
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.output_files import write_whole
from fuzzcompile.run.device import describe_environment, resolve_device
from fuzzcompile.run.pool.worker import RemoteError, WorkerFailed, WorkerOutOfMemory, WorkerStartFailed
from fuzzcompile.run.pool.worker_pool import WorkerPool

# Seconds that one candidate may take: less than the case did, which was judged within the limits.
_CANDIDATE_TIME = 90.0


@dataclass
class PoolAsker:
    """Compiles in a pool's worker: a step that crashes or hangs costs the worker and nothing else."""

    pool: WorkerPool
    fatal: set[str] = field(default_factory=set)

    def ask(self, step: Callable[[], Answer], *, name: str, source: str, limited: bool = False) -> Answer:
        """Run a step in a worker; one that is lost before eager has finished is no fault of the compiler."""
        limit = _CANDIDATE_TIME if limited else None
        # A script may change its process for good, so its worker runs nothing else.
        spends = not defines_make(source)
        try:
            return self.pool.schedule(step, label="minimize", time_limit=limit, spends=spends).result()
        except WorkerStartFailed as error:
            raise make_start_error(error) from error
        except WorkerFailed as error:
            compiling, report = read_left(error.left)
            greedy = isinstance(error, WorkerOutOfMemory)  # this machine's fault, if anyone's
            verdict = "memory" if greedy else str(choose_loss_verdict(error))
            detail = f"{error}, before eager had finished"
            raise CandidateLost(verdict, detail, compiling=compiling and not greedy, report=report) from error
        except RemoteError as error:
            raise CandidateLost(error.kind, str(error)) from error

    def guard_eager(self, program: Program) -> AbstractContextManager[bool]:
        """Whether a worker survives the program's eager run; a loss takes seconds, and comes once a program."""
        digest = write_program(program).digest
        if digest not in self.fatal:
            step = partial(run_eagerly, program)
            try:
                self.pool.schedule(step, label="run", time_limit=_CANDIDATE_TIME, counts=False).result()
            except WorkerStartFailed as error:
                raise make_start_error(error) from error
            except WorkerFailed:
                self.fatal.add(digest)
            except RemoteError:
                pass  # it cannot be sent, say: then it runs here, as far as it does
        return contextlib.nullcontext(digest not in self.fatal)


@dataclass(frozen=True)
class MinimizeSubject:
    """A case to minimize: its source and report, and its row and finding where the corpus has them."""

    source: str
    report: ReportJson
    case: CaseRecord | None = None
    finding: str | None = None


def judge_case_file(path: Path, conditions: Conditions, arguments: tuple[str, ...] = ()) -> ReportJson:
    """Judge the case file, or a script with its arguments."""
    (answer,) = triage_files([path], conditions, Question(arguments=arguments))
    if answer.report is None:
        error = EnvironmentUnfit(answer.error)
        error.exit_status = answer.status
        raise error
    return answer.report


def find_subject(
    name: str, store: Store | None, conditions: Conditions, state: Path | None, arguments: tuple[str, ...] = ()
) -> MinimizeSubject | None:
    """The case file of that name, judged now or by the search that ``state`` keeps, or else a finding of the store.

    A script gets ``arguments``. None for a case that shows no bug.
    """
    path = Path(name)
    if store is not None and not path.is_file():
        stored = store.finding(name)
        return MinimizeSubject(stored.source, stored.report, store.case(stored.source_sha256), stored.public_id)
    source = replace(read_case_file(path), arguments=arguments).program
    if state is not None:
        report = read_state(state, MinimizeSubject(source, {"torch": installed_torch()}))[1]
    else:
        report = judge_case_file(path, conditions, arguments)
    if not report["is_bug"]:
        return None
    if store is None:
        return MinimizeSubject(source, report)
    signature = report.get("signature")
    finding = None if signature is None else store.finding_of(signature)
    return MinimizeSubject(source, report, store.case(hash_source(source)), finding)


def choose_conditions(subject: MinimizeSubject, conditions: Conditions) -> Conditions:
    """The conditions to minimize the subject under: for the target of its report, unless a target or GPU was named."""
    target = read_target(subject.report)
    if target is None or conditions.target is not None or conditions.device not in ("auto", "cpu"):
        return conditions
    return replace(conditions, device="cpu", target=target)


def minimize(
    subject: MinimizeSubject,
    conditions: Conditions,
    *,
    seconds: float,
    compiles: int = 200,
    keep: Keep = "culprit",
    state: Path | None = None,
    resume: bool = False,
    for_issue: bool = False,
    script_seconds: float = 0.0,
    on_progress: Callable[[SearchProgress], None] | None = None,
) -> MinimizeResult:
    """Minimize the subject under its locked signature; candidates compile in a worker, which a crash may cost.

    A KeyboardInterrupt ends the search with the best case so far.

    ``seconds`` is the time for the start of a worker, the search (ten seconds at least) and the reproducer;
    ``compiles`` and screens are what the search may use, an earlier search's not counted. ``keep`` must stay: the
    verdict's kind, or the culprit too. The file ``state`` keeps what was learned, for ``resume``, until a search is
    finished. What an issue shows is made with ``for_issue``, and always for a stored finding; it may take
    ``script_seconds`` beyond ``seconds``, and as long as it does where that is infinite.
    """
    ends = time.monotonic() + seconds
    target = SignatureLock.of(subject.report, keep)
    tally = read_state(state, subject)[0] if resume and state is not None else SearchTally()
    whole = for_issue or subject.finding is not None
    recipe = None if subject.case is None else read_recipe(subject.case.choices, subject.case.spec)
    job = make_job(subject.source, subject.report, recipe, keep, for_issue=whole)
    plants = tuple(path.resolve() for path in conditions.plants)  # workers run them, and this process does not
    job = replace(job, ends=ends + script_seconds, plants=plants or None)

    def keep_state(progress: SearchProgress | None = None) -> None:
        if state is not None:
            write_state(state, subject, tally)
        if on_progress is not None and progress is not None:
            on_progress(progress)

    keep_state()
    reserved = CONCLUDING if job.for_issue else CONFIRMING
    budget = SearchBudget(tally.tests + compiles, max(ends - reserved, time.monotonic() + LEAST_SEARCH))
    with open_pool(conditions, 1, least_threads=LEAST_THREADS) as pool:
        tools = CandidateTools(PoolAsker(pool), target, subject.report, conditions.vetoes)
        with guard_runs(tools.asker.guard_eager):
            outcome = reduce_case(job, tools, budget, tally=tally, on_progress=keep_state)
        pool.kill_workers()
    if state is not None and outcome.finished:
        state.unlink(missing_ok=True)
    return outcome


def show_again(source: str, report: ReportJson, neighbour: str | None, conditions: Conditions) -> ReproducerResult:
    """Build the reproducer of a case for an issue and run it, in as many processes as the case asks for.

    Raises:
        CaseError, UsageError: none can be built.
    """
    if count_processes(source) is None:
        return show(source, report, neighbour, for_issue=True, plants=conditions.plants)
    with open_pool(conditions, 1, least_threads=LEAST_THREADS) as pool:
        written = CandidateTools(PoolAsker(pool), SignatureLock.of(report), report).write(source, report)
        pool.kill_workers()
    if written is None:
        raise CaseError("No script of its processes can be written.")
    return show_written(written, report, for_issue=True, plants=conditions.plants)


def read_state(state: Path, subject: MinimizeSubject) -> tuple[SearchTally, ReportJson]:
    """Read the results of an earlier search for this subject, and the report that it started from."""
    try:
        kept = json.loads(state.read_text(encoding="utf-8"))
        source, report = kept.pop("source"), kept.pop("report")
        if source != hash_source(subject.source) or report["torch"] != subject.report["torch"]:
            raise UsageError(f"{state} is about another case or another torch; leave out --resume.")
        return SearchTally(**kept), report
    except FileNotFoundError as error:
        raise UsageError(f"There is nothing to resume: no {state}.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{state} cannot be read; delete it and leave out --resume.") from error


def write_state(state: Path, subject: MinimizeSubject, tally: SearchTally) -> None:
    """Keep what a search learned so far; if the file cannot be written, only --resume is lost."""
    kept = {**asdict(tally), "source": hash_source(subject.source), "report": subject.report}
    with contextlib.suppress(FuzzcompileError):
        write_whole(state, json.dumps(kept).encode(), "--out")


# Secondary findings: candidates of a reduction that fail in another way, judged and stored on their own.

# Most secondary candidates of one reduction show one bug in many sizes.
MOST_SECONDARY = 4


@dataclass(frozen=True)
class SecondaryFinding:
    """A candidate that shows a bug: the finding that it was stored under, and whether the corpus lacked it."""

    finding: str
    signature: str
    verdict: str
    is_new: bool


def store_secondary_findings(
    store: Store, sources: Sequence[str], conditions: Conditions, most: int = MOST_SECONDARY
) -> list[SecondaryFinding]:
    """Judge the shortest ``most`` of the sources that the corpus lacks, and store those that show a bug."""
    new = sorted((source for source in sources if not store.has_source(hash_source(source))), key=len)[:most]
    if not new:
        return []
    environment = describe_environment(resolve_device(conditions.device), conditions.target)
    findings = list[SecondaryFinding]()
    answers = triage_sources({f"other_{number}.py": source for number, source in enumerate(new)}, conditions)
    for source, answer in zip(new, answers, strict=True):
        report = answer.report
        if report is None or not report["is_bug"]:
            continue
        stored = store.record(None, CaseRecord(hash_source(source), source, "reduction"), environment, report)
        if stored.finding_id is not None:
            name, signature = public_id(stored.finding_id), report["signature"] or ""
            findings.append(SecondaryFinding(name, signature, report["verdict"], stored.is_new_finding))
    return findings


# The facts behind the issue draft of a case file: it needs a reproducer, and its reader waits for it.
_SECONDS = 60.0


def collect_file_facts(path: Path, conditions: Conditions, arguments: tuple[str, ...] = ()) -> IssueFacts:
    """Judge the case file, or a script with its arguments, and minimize it if it shows a bug."""
    report = judge_case_file(path, conditions, arguments)
    subject = hints.CommandSubject(str(path), {**conditions.options(), "arguments": arguments})
    environment = describe_environment(resolve_device(conditions.device), conditions.target)
    if not report["is_bug"]:
        return IssueFacts(report, None, environment, subject=subject)
    case = MinimizeSubject(replace(read_case_file(path), arguments=arguments).program, report)
    small = minimize(case, conditions, seconds=_SECONDS, for_issue=True, script_seconds=math.inf)
    shown = small.shown or {}
    return IssueFacts(
        small.report, small.reproducer, environment, hits=1, confirmed=small.confirmed, shown=shown, subject=subject
    )
