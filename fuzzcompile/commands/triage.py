"""Triage of case files in worker processes, in the order given."""

from __future__ import annotations

import glob
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzcompile.casefiles import CaseFile, read_case_file
from fuzzcompile.commands.answers import Answer, Unjudged, overall_status
from fuzzcompile.contract import ReportJson
from fuzzcompile.errors import CaseError, FuzzcompileError, UsageError, message_of
from fuzzcompile.execution.named import installed_torch
from fuzzcompile.execution.pool import (
    RemoteError,
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerPool,
    WorkerStartFailed,
    WorkerState,
    WorkerTimeout,
)
from fuzzcompile.plants import check_plants
from fuzzcompile.trials.against import check_against, modes_here
from fuzzcompile.worker.conditions import Conditions, Question
from fuzzcompile.worker.leaving import left_behind
from fuzzcompile.worker.lost import is_cut_off, report_of, unstartable
from fuzzcompile.worker.pool import ATTRIBUTION_SHARE, LEAST_THREADS, open_pool
from fuzzcompile.worker.tasks import JUDGE, Judged, JudgeTask
from fuzzcompile.worker.vetoes import Vetoes

if TYPE_CHECKING:
    from fuzzcompile.reporting.baseline import Baseline
    from fuzzcompile.settings import Ignored

__all__ = ["Answer", "Unjudged", "case_files", "check_asked", "overall_status", "triage_files"]

_SUFFIXES = (".py", ".ipynb")
_MORE_MEMORY = "raise --max-memory, or judge a part with --module"


def case_files(paths: Sequence[Path], ignored: Ignored | None = None) -> list[Path]:
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
        files += _not_ignored(path, named, ignored)
    return files


def _not_ignored(path: Path, named: list[Path], ignored: Ignored | None) -> list[Path]:
    left = [file for file in named if ignored is None or not ignored.file(file)]
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
) -> Generator[Answer, None, None]:
    """Judge the files and yield an answer for each, in order. Files that cannot be cases cost no worker.

    Args:
        files: what :func:`case_files` returns.
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
    check_asked(conditions, question)
    read = [_read(path) for path in files]
    cases = [file for file in read if isinstance(file, CaseFile)]
    if not cases:
        yield from (answer for answer in read if isinstance(answer, Answer))
        return
    vetoes = Vetoes(conditions, cases)
    unsure = vetoes.check()
    with (
        open_pool(conditions, min(workers, len(cases)), least_threads=LEAST_THREADS, listener=listener)
        if pool is None
        else nullcontext(pool) as judges,
    ):

        def submitted(file: CaseFile) -> _Job:
            task = JudgeTask(
                **vars(question),
                path=str(file.path),
                vetoes=conditions.vetoes,
                seconds=ATTRIBUTION_SHARE * conditions.limits.seconds,
                memory=conditions.limits.memory,
                describe=describe,
            )
            return _submit(judges, file, task)

        meanwhile()
        if unsure:
            vetoes.ask(judges)
        jobs = [file if isinstance(file, Answer) else submitted(file) for file in read]
        for job in jobs:
            answer = job if isinstance(job, Answer) else _answer(judges, job, conditions)
            yield answer.compared_with(baseline)


def check_asked(conditions: Conditions, question: Question) -> None:
    """Refuse questions that cannot be answered, before any worker starts.

    Raises:
        UsageError: a plant cannot be used, there is nothing to compare with, or the contract needs another device.
        EnvironmentUnfit: there is no torch.
    """
    check_plants(conditions.plants)
    modes = modes_here()
    if modes is not None:  # of another torch, a worker knows
        check_against(question.against, modes)
    if question.contract == "bitwise" and conditions.target is not None:
        raise UsageError("The bitwise contract needs the device itself: leave out --target or --contract.")


def _read(path: Path) -> CaseFile | Answer:
    try:
        return read_case_file(path)
    except CaseError as error:
        return Answer(path, None, message_of(error), error.exit_status)


@dataclass(frozen=True)
class _Job:
    """A file that a pool judges."""

    file: CaseFile
    task: JudgeTask
    future: Future[Judged]


def _submit(pool: WorkerPool, file: CaseFile, task: JudgeTask) -> _Job:
    # What a script does to its process (operators registered, functions patched) cannot be undone.
    spends = file.kind not in ("case", "call")
    return _Job(file, task, pool.schedule(JUDGE, (task,), label=f"judge {file.path.name}", spends=spends))


def _answer(pool: WorkerPool, job: _Job, conditions: Conditions, *, again: bool = False) -> Answer:
    path = job.file.path
    try:
        judged = job.future.result()
    except FuzzcompileError as error:
        return Answer(path, None, message_of(error), error.exit_status)
    except WorkerStartFailed as error:
        raise unstartable(error) from error
    except WorkerFailed as error:
        return _lost(pool, job, error, conditions, again=again)
    except MemoryError as error:
        return _unjudged(
            path, f"memory ran out ({message_of(error)}); give it more memory, or judge a part with --module"
        )
    except RemoteError as error:
        return _unjudged(path, f"it raises {message_of(error).rstrip(': ')}; fix the file")
    except Exception as error:  # our own failure costs this file, not those after it
        return _unjudged(path, f"{type(error).__name__}: {message_of(error)}; report it to the fuzzcompile developers")
    return _judged(path, judged.report, judged.machine)


def _judged(path: Path, report: ReportJson, machine: Mapping[str, object] | None = None) -> Answer:
    status = 1 if report["is_bug"] else 0
    return Answer(path, report, status=status, seconds=report["cost"]["seconds"], machine=machine)


def _lost(pool: WorkerPool, job: _Job, error: WorkerFailed, conditions: Conditions, *, again: bool) -> Answer:
    """The answer after a worker was lost: the compiler is at fault only if eager had finished."""
    path, target = job.file.path, conditions.target
    eager_done, report = left_behind(error.left)
    if is_cut_off(error):
        return _unjudged(path, _before_compiling(error))
    if report is not None:
        report["detail"] = f"{report['detail']}; what came after the verdict {error}".lstrip("; ")
        return _judged(path, report)
    if not eager_done:
        return _unjudged(path, _before_compiling(error))
    if isinstance(error, WorkerOutOfMemory):  # our own copies count too: the compiler need not be at fault
        return _unjudged(path, f"{_memory_used(error)} once it was compiled; {_MORE_MEMORY}")
    if target is not None and isinstance(error, WorkerTimeout):  # an interpreted kernel is slow by nature
        return _unjudged(path, f"it was {error}, with kernels of {target} interpreted; raise --timeout")
    if not again:  # a crash or time-out must happen twice
        return _answer(pool, _submit(pool, job.file, job.task), conditions, again=True)
    report = report_of(error, path.stem, installed_torch(), pool.workers()[0].device, target)
    return Answer(path, report, status=1, seconds=error.seconds if isinstance(error, WorkerTimeout) else 0.0)


def _unjudged(path: Path, why: str) -> Answer:
    return Answer(path, None, f"{path} could not be judged: {why}.", 3)


def _before_compiling(error: WorkerFailed) -> str:
    """Return a sentence on how the worker was lost before anything was compiled, and what to do."""
    if isinstance(error, WorkerTimeout):
        return f"it was {error}, before anything was compiled; raise --timeout, or fix the file"
    if isinstance(error, WorkerOutOfMemory):
        return f"{_memory_used(error)} before anything was compiled; {_MORE_MEMORY}"
    if is_cut_off(error):
        return "it closes files of its process that are not its own; fix the file"
    if isinstance(error, WorkerCrashed) and error.signal_name is None:
        return f"it ends its process (exit status {error.exit_code}) before anything is compiled; fix the file"
    if isinstance(error, WorkerCrashed):
        return f"its process is ended by {error.signal_name} before anything is compiled; fix the file"
    return f"{error}; run it again"


def _memory_used(error: WorkerOutOfMemory) -> str:
    seen, limit = error.seen / 2**30, error.limit / 2**30
    return f"it used {seen:.1f} GiB of memory, of which --max-memory allows {limit:.1f} GiB,"
