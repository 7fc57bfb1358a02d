"""Triage of case files in worker processes, in the order given."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import torch

from fuzzcompile.capture.loading import defines_make
from fuzzcompile.case import read_source
from fuzzcompile.contract import ReportJson
from fuzzcompile.errors import CaseError, FuzzcompileError, UsageError
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.pool import (
    RemoteError,
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerPool,
    WorkerStartFailed,
    WorkerTimeout,
)
from fuzzcompile.judging.report import SCHEMA
from fuzzcompile.plants import check_plants
from fuzzcompile.reporting.baseline import Baseline
from fuzzcompile.reporting.junit import Entry
from fuzzcompile.reporting.sarif import Scanned
from fuzzcompile.severity import Severity, severity
from fuzzcompile.trials.compiles import check_against
from fuzzcompile.worker.conditions import Conditions, Question
from fuzzcompile.worker.judge import Judged, JudgeTask, judge_file
from fuzzcompile.worker.lost import left_behind, report_of, unstartable
from fuzzcompile.worker.pool import ATTRIBUTION_SHARE, LEAST_THREADS, open_pool


class Unjudged(TypedDict):
    """The JSON object for a file that could not be judged."""

    schema: int
    case: str
    verdict: None
    is_bug: bool
    error: str | None


@dataclass(frozen=True)
class Answer:
    """The result for one file: a report, or the reason why there is none.

    ``known`` says whether a bug is in the baseline (None without a baseline, or without a bug), ``status`` is the exit
    status that the file asks for, ``seconds`` the wall time of judging it.
    """

    path: Path
    report: ReportJson | None
    error: str | None = None
    status: int = 0
    known: bool | None = None
    seconds: float = 0.0

    def to_json(self) -> ReportJson | Unjudged:
        """The report, or an object with the error."""
        if self.report is not None:
            return self.report if self.known is None else {**self.report, "known": self.known}
        return {"schema": SCHEMA, "case": self.path.stem, "verdict": None, "is_bug": False, "error": self.error}

    def to_junit(self) -> Entry:
        """The answer as a JUnit test case."""
        return Entry(self.path, self.report, self.error, bool(self.known), self.seconds)

    def status_from(self, least: Severity | None) -> int:
        """The exit status if only bugs that are at least as bad as ``least`` count."""
        own = severity(self.report)
        return (
            0 if self.status == 1 and least is not None and own is not None and not own.reaches(least) else self.status
        )

    def to_sarif(self) -> Scanned:
        """The answer as what SARIF is written of."""
        return Scanned(self.path, self.report, self.error, bool(self.known))

    def compared_with(self, baseline: Baseline | None) -> Answer:
        """The answer with ``known`` set; a bug that the baseline lists does not change the exit status."""
        if baseline is None or self.report is None or not self.report["is_bug"]:
            return self
        known = baseline.knows(self.report)
        return replace(self, known=known, status=0 if known else self.status)


def case_files(paths: Sequence[Path]) -> list[Path]:
    """The files that ``paths`` name: files as they are, folders and globs as their Python files in order.

    Raises:
        CaseError: a path names nothing.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            named = sorted(p for p in path.glob("*.py") if not p.name.startswith("_"))
        elif path.exists():
            named = [path]
        else:
            named = sorted(Path(name) for name in glob.glob(str(path)) if name.endswith(".py"))  # noqa: PTH207
        if not named:
            raise CaseError(f"{path} names no case: give a Python file, a folder of them, or a glob.")
        files += named
    return files


def triage_files(
    files: Sequence[Path],
    conditions: Conditions,
    question: Question | None = None,
    *,
    workers: int = 1,
    baseline: Baseline | None = None,
    pool: WorkerPool | None = None,
) -> Generator[Answer, None, None]:
    """Judge the files and yield an answer for each, in order.

    With ``pool``, its workers judge them and stay; it was opened under the same conditions.

    Raises:
        UsageError: a plant cannot be used, or ``question.against`` names nothing to compare with.
        EnvironmentUnfit: there is no such device, or no worker can be started.
    """
    check_plants(conditions.plants)
    limits, question = conditions.limits, question or Question()
    check_against(question.against)
    if question.contract == "bitwise" and conditions.target is not None:
        raise UsageError("The bitwise contract needs the device itself: leave out --target or --contract.")
    where = _Where(str(resolve(conditions.device)), conditions.target)
    with (
        tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder,
        open_pool(conditions, workers, least_threads=LEAST_THREADS) if pool is None else nullcontext(pool) as pool,
    ):
        tasks = [
            JudgeTask(
                **vars(question),
                path=str(path),
                vetoes=conditions.vetoes,
                marker=str(Path(folder) / f"{number}.eager"),
                seconds=ATTRIBUTION_SHARE * limits.seconds,
                memory=limits.memory,
            )
            for number, path in enumerate(files)
        ]
        futures = [_submit(pool, task) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            yield _answer(pool, task, future, where).compared_with(baseline)


@dataclass(frozen=True)
class _Where:
    """The device that runs, and the target that the compiler is told, if any."""

    device: str
    target: str | None


def _submit(pool: WorkerPool, task: JudgeTask) -> Future[Judged]:
    path = Path(task.path)
    # What a script does to its process (operators registered, functions patched) cannot be undone.
    return pool.schedule(judge_file, (task,), label=f"judge {path.name}", spends=not _is_case_file(path))


def _is_case_file(path: Path) -> bool:
    try:
        return defines_make(read_source(path))
    except CaseError:
        return True  # it is refused before any of it runs


def _answer(pool: WorkerPool, task: JudgeTask, future: Future[Judged], where: _Where, *, again: bool = False) -> Answer:
    path = Path(task.path)
    try:
        report = future.result().report
    except FuzzcompileError as error:
        return Answer(path, None, _one_line(error), error.exit_status)
    except WorkerStartFailed as error:
        raise unstartable(error) from error
    except WorkerFailed as error:
        return _lost(pool, task, error, where, again=again)
    except MemoryError as error:
        return _unjudged(
            path, f"memory ran out ({_one_line(error)}); give it more memory, or judge a part with --module"
        )
    except RemoteError as error:
        return _unjudged(path, f"it raises {_one_line(error).rstrip(': ')}; fix the file")
    except Exception as error:  # our own failure costs this file, not those after it
        return _unjudged(path, f"{type(error).__name__}: {_one_line(error)}; report it to the fuzzcompile developers")
    seconds = report["cost"]["seconds"]
    return Answer(path, report, status=1 if report["is_bug"] else 0, seconds=seconds)


def _lost(pool: WorkerPool, task: JudgeTask, error: WorkerFailed, where: _Where, *, again: bool) -> Answer:
    """The answer after a worker was lost: the compiler is at fault only if eager had finished."""
    path, marker = Path(task.path), Path(task.marker or "")
    eager_done, report = left_behind(marker)
    if isinstance(error, WorkerCrashed) and error.exit_code is None:  # cut off, whatever it still wrote
        return _unjudged(path, _before_compiling(error))
    if report is not None:
        report["detail"] = f"{report['detail']}; what came after the verdict {error}".lstrip("; ")
        return Answer(path, report, status=1 if report["is_bug"] else 0, seconds=report["cost"]["seconds"])
    if not eager_done:
        return _unjudged(path, _before_compiling(error))
    if isinstance(error, WorkerOutOfMemory):  # our own copies count too: the compiler need not be at fault
        return _unjudged(path, f"{_memory_used(error)} once it was compiled; {_MORE_MEMORY}")
    if where.target is not None and isinstance(error, WorkerTimeout):  # an interpreted kernel is slow by nature
        return _unjudged(path, f"it was {error}, with kernels of {where.target} interpreted; raise --timeout")
    if not again:  # a crash or time-out must happen twice
        marker.unlink()
        return _answer(pool, task, _submit(pool, task), where, again=True)
    report = report_of(error, path.stem, torch.__version__, where.device, where.target)
    return Answer(path, report, status=1, seconds=error.seconds if isinstance(error, WorkerTimeout) else 0.0)


def _unjudged(path: Path, why: str) -> Answer:
    return Answer(path, None, f"{path} could not be judged: {why}.", 3)


_MORE_MEMORY = "raise --max-memory, or judge a part with --module"


def _before_compiling(error: WorkerFailed) -> str:
    """How the worker was lost before anything was compiled, and what to do."""
    if isinstance(error, WorkerTimeout):
        return f"it was {error}, before anything was compiled; raise --timeout, or fix the file"
    if isinstance(error, WorkerOutOfMemory):
        return f"{_memory_used(error)} before anything was compiled; {_MORE_MEMORY}"
    if isinstance(error, WorkerCrashed) and error.exit_code is None:
        return "it closes files of its process that are not its own; fix the file"
    if isinstance(error, WorkerCrashed) and error.signal_name is None:
        return f"it ends its process (exit status {error.exit_code}) before anything is compiled; fix the file"
    if isinstance(error, WorkerCrashed):
        return f"its process is ended by {error.signal_name} before anything is compiled; fix the file"
    return f"{error}; run it again"


def _memory_used(error: WorkerOutOfMemory) -> str:
    seen, limit = error.seen / 2**30, error.limit / 2**30
    return f"it used {seen:.1f} GiB of memory, of which --max-memory allows {limit:.1f} GiB,"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600]


def overall_status(answers: Sequence[Answer], least: Severity | None = None) -> int:
    """3 if any file could not be judged, else 2 if any is no case, else 1 if any is a bug (of ``least``), else 0."""
    return max((answer.status_from(least) for answer in answers), default=0)
