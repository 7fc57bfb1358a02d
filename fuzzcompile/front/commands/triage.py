"""Triage of case files in worker processes, in the order given."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict

from fuzzcompile.diagnosis.worker.local_pool import ATTRIBUTION_SHARE, LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.veto_check import VetoCheck
from fuzzcompile.diagnosis.worker.worker_loss import (
    LossMeaning,
    is_cut_off,
    make_loss_report,
    make_start_error,
    weigh_loss,
)
from fuzzcompile.model.conditions import Conditions, Question, check_against, list_modes
from fuzzcompile.model.contract import SCHEMA, ReportJson
from fuzzcompile.model.errors import CaseError, FuzzcompileError, UsageError, format_message
from fuzzcompile.model.judge_task import JUDGE, JudgeResult, JudgeTask
from fuzzcompile.model.settings import IgnorePatterns
from fuzzcompile.model.severity import Severity, rate_severity
from fuzzcompile.model.signatures import agree, name_same_place, renew
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.programs.casefiles.case_file import CaseFile, read_case_file
from fuzzcompile.report.output_files import EventLog
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.pool.worker import (
    RemoteError,
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerStartFailed,
    WorkerTimeout,
)
from fuzzcompile.run.pool.worker_pool import WorkerPool
from fuzzcompile.run.pool.worker_slot import WorkerState

if TYPE_CHECKING:
    from fuzzcompile.report.ci_formats import Scanned

__all__ = [
    "Baseline",
    "FileAnswer",
    "UnjudgedJson",
    "check_question",
    "compute_status",
    "list_case_files",
    "triage_files",
]


# Known bugs: their signatures, from earlier ``triage --json`` output or from a plain list.

# What every signature begins with: a stage, then a source file, an error's type or "-".
_SIGNATURE = re.compile(r"[a-z_]+:[^:\s]+:\S.*")


@dataclass(frozen=True)
class Baseline:
    """The bugs that a user knows of: the signatures in a file, and what ``ignore`` names."""

    signatures: frozenset[str] = frozenset()
    ignored: IgnorePatterns | None = None

    @classmethod
    def of(cls, path: Path | None, ignored: IgnorePatterns | None) -> Baseline | None:
        """Return the signatures that a file lists and those that are ignored; None if there is neither.

        Raises:
            UsageError: as of :meth:`read`.
        """
        if path is None and ignored is None:
            return None
        return replace(cls() if path is None else cls.read(path), ignored=ignored)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read JSON objects or signatures, one a line; ``#`` starts a comment line.

        Raises:
            UsageError: the file cannot be read, or is neither.
        """
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(
                f"Cannot read the baseline {path}: {reason}; name a file of signatures or of `triage --json` lines."
            ) from error
        return cls(frozenset(_signatures(path, text)))

    def knows(self, report: ReportJson | None) -> bool:
        """Whether the report shows a bug that is in the list; of what either side does not know, the rest decides."""
        if report is None or not report.get("is_bug"):
            return False
        signature = report.get("signature")
        if self.ignored is not None and self.ignored.ignores_bug(signature, report.get("culprit")):
            return True
        if signature is None:
            return False
        listed = map(renew, self.signatures)
        return any(name_same_place(known, signature) and agree(known, signature) for known in listed)


def _signatures(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line[0] in "{[":
            yield from _of_object(path, number, line)
        elif _SIGNATURE.fullmatch(line):
            yield line
        else:
            raise _malformed(path, number, "no signature and no JSON object")


def _of_object(path: Path, number: int, line: str) -> Iterator[str]:
    try:
        report = json.loads(line)
    except json.JSONDecodeError as error:
        raise _malformed(path, number, "no whole JSON object") from error
    if not isinstance(report, dict) or "verdict" not in report:
        raise _malformed(path, number, "no object that `triage --json` prints")
    signature = report.get("signature")  # without one there was no bug, or no verdict
    if signature is not None and not isinstance(signature, str):
        raise _malformed(path, number, "an object whose signature is not text")
    if signature:
        yield signature


def _malformed(path: Path, number: int, what: str) -> UsageError:
    return UsageError(
        f"The baseline {path} has in line {number} {what}; give one signature or one object of `triage --json` a line."
    )


# The answer on one file of a triage, in the forms in which it is written.


class UnjudgedJson(TypedDict):
    """The JSON object for a file that could not be judged."""

    schema: int
    case: str
    verdict: None
    is_bug: bool
    error: str | None


@dataclass(frozen=True)
class FileAnswer:
    """The result for one file: a report, or the reason why there is none.

    ``known`` says whether a bug is in the baseline (None without a baseline, or without a bug), ``status`` is the exit
    status that the file asks for, ``seconds`` the wall time of judging it, ``machine`` the description of where it was
    judged if that was asked for.
    """

    path: Path
    report: ReportJson | None
    error: str | None = None
    status: int = 0
    known: bool | None = None
    seconds: float = 0.0
    machine: Mapping[str, object] | None = None

    def to_json(self) -> ReportJson | UnjudgedJson:
        """The report, or an object with the error."""
        if self.report is not None:
            return self.report if self.known is None else {**self.report, "known": self.known}
        return {"schema": SCHEMA, "case": self.path.stem, "verdict": None, "is_bug": False, "error": self.error}

    def choose_status(self, least: Severity | None) -> int:
        """The exit status if only bugs that are at least as bad as ``least`` count."""
        own = rate_severity(self.report)
        return (
            0 if self.status == 1 and least is not None and own is not None and not own.reaches(least) else self.status
        )

    def to_scanned(self) -> Scanned:
        """Return the answer in the form from which SARIF and JUnit XML are written."""
        from fuzzcompile.report.ci_formats import Scanned

        return Scanned(self.path, self.report, self.error, bool(self.known), self.seconds)

    def compare_with(self, baseline: Baseline | None) -> FileAnswer:
        """The answer with ``known`` set; a bug that the baseline lists does not change the exit status."""
        if baseline is None or self.report is None or not self.report["is_bug"]:
            return self
        known = baseline.knows(self.report)
        return replace(self, known=known, status=0 if known else self.status)


def compute_status(answers: Sequence[FileAnswer], least: Severity | None = None) -> int:
    """3 if any file could not be judged, else 2 if any is no case, else 1 if any is a bug (of ``least``), else 0."""
    return max((answer.choose_status(least) for answer in answers), default=0)


_SUFFIXES = (".py", ".ipynb")
_MORE_MEMORY = "raise --max-memory, or judge a part with --module"


def list_case_files(paths: Sequence[Path], ignored: IgnorePatterns | None = None) -> list[Path]:
    """The files that ``paths`` name: files as they are, folders and globs as their Python files in order.

    What ``ignored`` names is passed over in folders and globs.

    Raises:
        CaseError: a path names nothing.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            named = sorted(p for p in path.glob("*.py") if not p.name.startswith("_"))
        elif glob.has_magic(str(path)) and not path.exists():
            named = sorted(Path(name) for name in glob.glob(str(path)) if name.endswith(_SUFFIXES))  # noqa: PTH207
        else:
            files.append(path)
            continue
        if not named:
            what = "holds no Python files" if path.is_dir() else "matches no Python file"
            raise CaseError(f"{path} {what}: give a case, a folder of them, or a glob.")
        files += _is_not_ignored(path, named, ignored)
    return files


def _is_not_ignored(path: Path, named: list[Path], ignored: IgnorePatterns | None) -> list[Path]:
    left = [file for file in named if ignored is None or not ignored.ignores_file(file)]
    if not left:
        raise CaseError(f"All {len(named)} files of {path} are ignored: name one of them, or change `ignore`.")
    return left


def triage_files(
    files: Sequence[Path],
    conditions: Conditions,
    question: Question | None = None,
    *,
    workers: int = 1,
    baseline: Baseline | None = None,
    describe: bool = False,
    listener: Callable[[WorkerState], object] | None = None,
    pool: WorkerPool | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Generator[FileAnswer, None, None]:
    """Judge the files and yield an answer for each, in order. Files that cannot be cases cost no worker.

    Args:
        files: what :func:`list_case_files` returns.
        conditions: where and how they run.
        question: what is asked about each.
        workers: how many processes judge them.
        baseline: known bugs.
        describe: also describe the machine, in ``Answer.machine``.
        listener: called by another thread with what a worker says that it does.
        pool: whose workers judge them, and stay; it was opened under the same conditions. None: a pool of its own.
        meanwhile: called once, while the workers import torch.

    Raises:
        UsageError: a plant cannot be used, a veto means nothing, or ``question.against`` names nothing to compare with.
        EnvironmentUnfit: there is no such device, or no worker can be started.
    """
    question = question or Question()
    check_question(conditions, question)
    read = [_read_case(path) for path in files]
    cases = [file for file in read if isinstance(file, CaseFile)]
    if not cases:
        yield from (answer for answer in read if isinstance(answer, FileAnswer))
        return
    vetoes = VetoCheck(conditions, cases)
    unsure = vetoes.check()
    with (
        open_pool(conditions, min(workers, len(cases)), least_threads=LEAST_THREADS, listener=listener)
        if pool is None
        else nullcontext(pool) as judges,
    ):
        task = _make_task(question, conditions, describe=describe)
        meanwhile()
        if unsure:
            vetoes.ask_worker(judges)
        jobs = [
            file if isinstance(file, FileAnswer) else _submit(judges, file, replace(task, path=str(file.path)))
            for file in read
        ]
        for job in jobs:
            answer = job if isinstance(job, FileAnswer) else _await_answer(judges, job, conditions)
            yield answer.compare_with(baseline)


def _make_task(question: Question, conditions: Conditions, *, describe: bool) -> JudgeTask:
    """Return the task of judging a file, whose path is to be filled in."""
    return JudgeTask(
        **vars(question),
        path="",
        vetoes=conditions.vetoes,
        seconds=ATTRIBUTION_SHARE * conditions.limits.seconds,
        memory=conditions.limits.memory,
        describe=describe,
    )


def check_question(conditions: Conditions, question: Question) -> None:
    """Refuse questions that cannot be answered, before any worker starts.

    Raises:
        UsageError: a plant cannot be used, there is nothing to compare with, or the contract needs another device.
        EnvironmentUnfit: there is no torch.
    """
    check_plants(conditions.plants)
    modes = list_modes()
    if modes is not None:  # of another torch, a worker knows
        check_against(question.against, modes)
    if question.contract == "bitwise" and conditions.target is not None:
        raise UsageError("The bitwise contract needs the device itself: leave out --target or --contract.")


def _read_case(path: Path) -> CaseFile | FileAnswer:
    try:
        return read_case_file(path)
    except CaseError as error:
        return FileAnswer(path, None, format_message(error), error.exit_status)


@dataclass(frozen=True)
class _TriageJob:
    """A file that a pool judges."""

    file: CaseFile
    task: JudgeTask
    future: Future[JudgeResult]


def _submit(pool: WorkerPool, file: CaseFile, task: JudgeTask) -> _TriageJob:
    # What a script does to its process (operators registered, functions patched) cannot be undone.
    spends = file.kind not in ("case", "call")
    return _TriageJob(file, task, pool.schedule(JUDGE, (task,), label=f"judge {file.path.name}", spends=spends))


def _await_answer(pool: WorkerPool, job: _TriageJob, conditions: Conditions, *, again: bool = False) -> FileAnswer:
    path = job.file.path
    try:
        judged = job.future.result()
    except FuzzcompileError as error:
        return FileAnswer(path, None, format_message(error), error.exit_status)
    except WorkerStartFailed as error:
        raise make_start_error(error) from error
    except WorkerFailed as error:
        return _answer_for_lost_worker(pool, job, error, conditions, again=again)
    except MemoryError as error:
        return _make_unjudged(
            path, f"memory ran out ({format_message(error)}); give it more memory, or judge a part with --module"
        )
    except RemoteError as error:
        return _make_unjudged(path, f"it raises {format_message(error).rstrip(': ')}; fix the file")
    except Exception as error:  # our own failure costs this file, not those after it
        return _make_unjudged(
            path, f"{type(error).__name__}: {format_message(error)}; report it to the fuzzcompile developers"
        )
    return _make_answer(path, judged.report, judged.machine)


def _make_answer(path: Path, report: ReportJson, machine: Mapping[str, object] | None = None) -> FileAnswer:
    status = 1 if report["is_bug"] else 0
    return FileAnswer(path, report, status=status, seconds=report["cost"]["seconds"], machine=machine)


def _answer_for_lost_worker(
    pool: WorkerPool, job: _TriageJob, error: WorkerFailed, conditions: Conditions, *, again: bool
) -> FileAnswer:
    """The answer after a worker was lost: the compiler is at fault only if eager had finished."""
    path, target = job.file.path, conditions.target
    meaning, report = weigh_loss(error, target, again=again)
    if is_cut_off(error) or meaning is LossMeaning.EARLY:
        return _make_unjudged(path, _describe_early_loss(error))
    if report is not None:
        report["detail"] = f"{report['detail']}; {meaning.value} {error}".lstrip("; ")
        return _make_answer(path, report)
    if isinstance(error, WorkerOutOfMemory):
        return _make_unjudged(path, f"{_describe_memory_use(error)} once it was compiled; {_MORE_MEMORY}")
    if meaning is LossMeaning.SLOW:
        return _make_unjudged(path, f"it was {error}, with kernels of {target} interpreted; raise --timeout")
    if meaning is LossMeaning.ONCE:
        return _await_answer(pool, _submit(pool, job.file, job.task), conditions, again=True)
    report = make_loss_report(error, path.stem, installed_torch(), pool.workers()[0].device, target)
    return FileAnswer(path, report, status=1, seconds=error.seconds if isinstance(error, WorkerTimeout) else 0.0)


def _make_unjudged(path: Path, why: str) -> FileAnswer:
    return FileAnswer(path, None, f"{path} could not be judged: {why}.", 3)


def _describe_early_loss(error: WorkerFailed) -> str:
    """Return a sentence on how the worker was lost before anything was compiled, and what to do."""
    if isinstance(error, WorkerTimeout):
        return f"it was {error}, before anything was compiled; raise --timeout, or fix the file"
    if isinstance(error, WorkerOutOfMemory):
        return f"{_describe_memory_use(error)} before anything was compiled; {_MORE_MEMORY}"
    if is_cut_off(error):
        return "it closes files of its process that are not its own; fix the file"
    if isinstance(error, WorkerCrashed) and error.signal_name is None:
        return f"it ends its process (exit status {error.exit_code}) before anything is compiled; fix the file"
    if isinstance(error, WorkerCrashed):
        return f"its process is ended by {error.signal_name} before anything is compiled; fix the file"
    return f"{error}; run it again"


def _describe_memory_use(error: WorkerOutOfMemory) -> str:
    seen, limit = error.seen / 2**30, error.limit / 2**30
    return f"it used {seen:.1f} GiB of memory, of which --max-memory allows {limit:.1f} GiB,"


# The log of a triage of several files, a line for each event (`fuzzcompile.report.output_files`).


class TriageLog:
    """The log of one triage; without a path, nothing is written."""

    def __init__(self, path: Path | None, files: Sequence[Path]) -> None:
        """Open the log.

        Raises:
            UsageError: it cannot be written.
        """
        self._log = EventLog(path)
        self._files = files
        self._answers: list[FileAnswer] = []

    def log_answer(self, answer: FileAnswer) -> None:
        """Log that a file was judged, or could not be."""
        self._answers.append(answer)
        report = answer.report or {}
        said = {key: report.get(key) for key in ("verdict", "is_bug", "severity", "confidence", "signature")}
        rest = {"known": answer.known, "error": answer.error, "seconds": round(answer.seconds, 3)}
        self._write("case_judged", case=str(answer.path), **said, **rest)

    def __enter__(self) -> Self:
        self._write("triage_started", cases=[str(path) for path in self._files])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = (
            "finished" if kind is None else "interrupted" if kind in (KeyboardInterrupt, GeneratorExit) else "failed"
        )
        judged = {"judged": len(self._answers), "cases": len(self._files)}
        with self._log:
            self._write("triage_finished", ended=ended, exit_status=compute_status(self._answers), **judged)

    def _write(self, event: str, **fields: object) -> None:
        self._log.write(event, fields)
