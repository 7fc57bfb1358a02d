"""Triage of case files in worker processes, in the order given. Needs no torch in this process."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from fuzzcompile.diagnosis.worker.local_pool import ATTRIBUTION_SHARE, LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.veto_check import VetoCheck
from fuzzcompile.diagnosis.worker.worker_loss import (
    LossMeaning,
    attribute_loss,
    is_cut_off,
    make_loss_report,
    make_start_error,
    weigh_loss,
)
from fuzzcompile.model.conditions import Conditions, Question, check_against, list_modes
from fuzzcompile.model.contract import SCHEMA, ReportJson
from fuzzcompile.model.errors import CaseError, FuzzcompileError, UsageError, describe_error, format_message
from fuzzcompile.model.judge_task import JUDGE, JudgeResult, JudgeTask
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.programs.casefiles.case_file import CaseFile, read_case_file
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.pool.worker import (
    RemoteError,
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerStartFailed,
    WorkerTimeout,
)
from fuzzcompile.run.pool.worker_pool import WorkerPool, WorkerState

_MORE_MEMORY = "raise --max-memory, or judge a part with --module"


class UnjudgedJson(TypedDict):
    """The JSON object for a file that could not be judged."""

    schema: int
    case: str
    verdict: None
    is_bug: bool
    error: str | None


@dataclass(frozen=True)
class FileAnswer:
    """The answer on one file: a report, or the reason why there is none."""

    path: Path
    report: ReportJson | None
    error: str | None = None
    status: int = 0  # the exit status that the file asks for
    known: bool | None = None  # whether its bug is in the baseline; None without a baseline, or without a bug
    seconds: float = 0.0  # of wall time
    machine: Mapping[str, object] | None = None  # where it was judged, if that was asked for

    def to_json(self) -> ReportJson | UnjudgedJson:
        """The report, or an object with the error."""
        if self.report is not None:
            return self.report if self.known is None else {**self.report, "known": self.known}
        return {"schema": SCHEMA, "case": self.path.stem, "verdict": None, "is_bug": False, "error": self.error}


def triage_files(
    files: Sequence[Path],
    conditions: Conditions,
    question: Question | None = None,
    *,
    workers: int = 1,
    describe: bool = False,
    listener: Callable[[WorkerState], object] | None = None,
    pool: WorkerPool | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Generator[FileAnswer, None, None]:
    """Judge the files and yield an answer for each, in order. Files that cannot be cases cost no worker.

    ``describe``: the machine too. ``listener`` is called by another thread with what a worker says that it does,
    ``meanwhile`` once, while the workers import torch. The workers of a ``pool`` that is given, opened under the same
    conditions, stay.

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
    task = JudgeTask(
        **vars(question),
        vetoes=conditions.vetoes,
        seconds=ATTRIBUTION_SHARE * conditions.limits.seconds,
        memory=conditions.limits.memory,
        describe=describe,
    )
    processes = min(workers, len(cases))
    opened = open_pool(conditions, processes, least_threads=LEAST_THREADS, listener=listener) if pool is None else None
    with opened or nullcontext(pool) as judges:
        assert judges is not None
        meanwhile()
        if unsure:
            vetoes.ask_worker(judges)
        triage = _FileTriage(judges, conditions, task)
        jobs = [file if isinstance(file, FileAnswer) else (file, triage.submit(file)) for file in read]
        for job in jobs:
            yield job if isinstance(job, FileAnswer) else triage.await_answer(*job)


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
    if question.nproc is not None and conditions.target is not None:
        raise UsageError("What is compiled for another device is judged in one process: leave out --target or --nproc.")


def _read_case(path: Path) -> CaseFile | FileAnswer:
    try:
        return read_case_file(path)
    except CaseError as error:
        return FileAnswer(path, None, format_message(error), error.exit_status)


@dataclass(frozen=True)
class _FileTriage:
    """Files that a pool judges; ``task`` is that of each but for its path."""

    pool: WorkerPool
    conditions: Conditions
    task: JudgeTask

    def submit(self, file: CaseFile) -> Future[JudgeResult]:
        # What a script does to its process (operators registered, functions patched) cannot be undone.
        spends = file.kind not in ("case", "call")
        return self.pool.schedule(JUDGE, (self._make_task(file),), label=f"judge {file.path.name}", spends=spends)

    def _make_task(self, file: CaseFile) -> JudgeTask:
        return replace(self.task, path=str(file.path))

    def await_answer(self, file: CaseFile, future: Future[JudgeResult], *, again: bool = False) -> FileAnswer:
        path = file.path
        try:
            judged = future.result()
        except FuzzcompileError as error:
            return FileAnswer(path, None, format_message(error), error.exit_status)
        except WorkerStartFailed as error:
            raise make_start_error(error) from error
        except WorkerFailed as error:
            return self._answer_for_lost_worker(file, error, again=again)
        except MemoryError as error:
            why = f"memory ran out ({format_message(error)}); give it more memory, or judge a part with --module"
        except RemoteError as error:
            why = f"it raises {format_message(error).rstrip(': ')}; fix the file"
        except Exception as error:  # our own failure costs this file, not those after it
            why = f"{describe_error(error)}; report it to the fuzzcompile developers"
        else:
            return _make_answer(path, judged.report, judged.machine)
        return _make_unjudged(path, why)

    def _answer_for_lost_worker(self, file: CaseFile, error: WorkerFailed, *, again: bool) -> FileAnswer:
        """Return the answer after a worker was lost: the compiler is at fault only if eager had finished."""
        path, target = file.path, self.conditions.target
        meaning, report = weigh_loss(error, target, again=again)
        if meaning is LossMeaning.EARLY or is_cut_off(error):
            return _make_unjudged(path, _describe_early_loss(error, file))
        if report is not None:
            report["detail"] = f"{report['detail']}; {meaning.value}: {error}".lstrip("; ")
            return _make_answer(path, report)
        if meaning is LossMeaning.MEMORY:
            return _make_unjudged(path, f"{_describe_memory_use(error)} once it was compiled; {_MORE_MEMORY}")
        if meaning is LossMeaning.SLOW:
            return _make_unjudged(path, f"it was {error}, with kernels of {target} interpreted; raise --timeout")
        if meaning is LossMeaning.BUSY and isinstance(error, WorkerTimeout):
            busy = f"while {error.load:.1f} processes wanted each of the machine's processors"
            return _make_unjudged(path, f"it was {error}, {busy}; run it again on a free machine, or raise --timeout")
        if meaning is LossMeaning.ONCE:
            return self.await_answer(file, self.submit(file), again=True)
        report = make_loss_report(error, path.stem, installed_torch(), self.pool.workers()[0].device, target)
        report = attribute_loss(self.pool, self._make_task(file), report, self.conditions.limits.seconds)
        return _make_answer(path, report)


def _make_answer(path: Path, report: ReportJson, machine: Mapping[str, object] | None = None) -> FileAnswer:
    return FileAnswer(path, report, None, int(report["is_bug"]), seconds=report["cost"]["seconds"], machine=machine)


def _make_unjudged(path: Path, why: str) -> FileAnswer:
    return FileAnswer(path, None, f"{path} could not be judged: {why}.", 3)


def _describe_early_loss(error: WorkerFailed, file: CaseFile) -> str:
    """Return a sentence on how the worker was lost before anything was compiled, and what to do."""
    if isinstance(error, WorkerTimeout):
        lines = re.findall(rf'File "[^"]*{re.escape(file.path.name)}", line (\d+)', error.output)  # the innermost first
        where = f" in {file.place(int(lines[0]))}" if lines else ""
        do = "raise --timeout, or have it do less before its first compiled call"
        return f"it was {error}{where}, before anything was compiled; {do} (its arguments follow after `--`)"
    if isinstance(error, WorkerOutOfMemory):
        return f"{_describe_memory_use(error)} before anything was compiled; {_MORE_MEMORY}"
    if is_cut_off(error):
        return "it closes files of its process that are not its own; fix the file"
    if isinstance(error, WorkerCrashed):
        name, own = error.signal_name, f"it ends its process (exit status {error.exit_code})"
        return f"{own if name is None else f'its process is ended by {name}'} before anything is compiled; fix the file"
    return f"{error}; run it again"


def _describe_memory_use(error: WorkerFailed) -> str:
    assert isinstance(error, WorkerOutOfMemory)
    seen, limit = error.seen / 2**30, error.limit / 2**30
    return f"it used {seen:.1f} GiB of memory, of which --max-memory allows {limit:.1f} GiB,"


def triage_sources(
    sources: Mapping[str, str], conditions: Conditions, on_start: Callable[[str], object] = lambda name: None
) -> Generator[FileAnswer, None, None]:
    """Judge programs, each as a file of the name that it is given; ``on_start`` hears of each that is waited for."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        for name, source in sources.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text(source, encoding="utf-8")
        with closing(triage_files([Path(folder, name) for name in sources], conditions)) as answers:
            for name in sources:
                on_start(name)
                yield next(answers)
