"""The profile of a case in a worker process, and of a jump the triage of its layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from fuzzcompile.analyses.profile.layer_profile import ProfileOptions, profile
from fuzzcompile.analyses.profile.recordings import RecordedRun, record
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_files
from fuzzcompile.diagnosis.worker.judge import open_case, open_more
from fuzzcompile.diagnosis.worker.local_pool import LEAST_THREADS, open_pool
from fuzzcompile.diagnosis.worker.rank_processes import seat_ranks
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.model.conditions import Conditions, Question
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.model.profile_contract import ProfileJson
from fuzzcompile.run.case import Case
from fuzzcompile.run.footprint import refuse_oversized
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.pool.worker import (
    RemoteError,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerStartFailed,
    WorkerTimeout,
    get_current_device,
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProfileTask:
    """A case to profile or to record: a file, and for a script which call, or a submodule of it."""

    path: Path
    asked: ProfileOptions  # what is compared with what
    call: int | None = None
    module: str | None = None
    nproc: int | None = None  # processes that run it together
    arguments: tuple[str, ...] = ()  # of a script
    recording: Path | None = None  # the file for a recording of ``asked.against``
    memory: int | None = None  # bytes of the worker beyond which the case is refused before it runs
    seconds: float | None = None  # for all of it

    def ask_about(self, module: str | None) -> Question:
        """The question about the case, or a module of it."""
        return Question(call=self.call, module=module, nproc=self.nproc, arguments=self.arguments)

    def check(self) -> None:
        """Refuse what cannot be compared, and what several processes cannot do, by a UsageError."""
        self.asked.check()
        if self.nproc is None:
            return
        if self.recording is not None or self.asked.look.operators:
            raise UsageError(
                "Several processes are compared by layers, and not recorded: leave out --record and --ops."
            )
        for side in (self.asked.against, self.asked.reference):
            if side.kind not in _TOGETHER:
                raise UsageError(f"Several processes cannot run as {side}: name {', '.join(_TOGETHER)}.")


# Sides that leave the dtypes and the places of tensors as they are, which processes agree on.
_TOGETHER = ("eager", "inductor", "aot_eager", "sdpa")


def profile_case(
    task: ProfileTask, conditions: Conditions, *, progress: Callable[[str], None] = lambda said: None
) -> ProfileJson:
    """Profile the case, and triage the layer of a jump that Inductor makes; ``progress`` is told what is being done."""
    task.check()
    against = task.asked.against
    progress(f"running {task.path.name} as {against} and as {task.asked.reference}, layer by layer")
    profiled = _run_in_worker(_profile_file, task, conditions)
    if profiled["verdict"] != "jump" or against.kind != "inductor":
        return profiled
    return profiled | _triage_layer(profiled, task, conditions, progress)


def record_case(task: ProfileTask, conditions: Conditions) -> RecordedRun:
    """Run the case as ``task.asked.against`` says, and record it; FuzzcompileError says why that is not possible."""
    task.check()
    return _run_in_worker(_record_file, task, conditions)


def _profile_file(task: ProfileTask) -> ProfileJson:
    with _load_case(task) as (case, device):
        return profile(case, device, task.asked)


def _record_file(task: ProfileTask) -> RecordedRun:
    asked, file = task.asked, task.recording
    assert file is not None
    with _load_case(task) as (case, device):
        return record(case, device, asked.against, file, look=asked.look, math_kernel=asked.math_only)


@contextlib.contextmanager
def _load_case(task: ProfileTask) -> Iterator[tuple[Case, torch.device]]:
    device = torch.device(get_current_device())
    question = task.ask_about(task.module)
    judged = JudgeTask(**vars(question), path=str(task.path), seconds=task.seconds)
    with seat_ranks(judged, open_more) as lead, open_case(judged, device) as (_, case), lead():
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        yield case, device


def _run_in_worker(function: Callable[[ProfileTask], Result], task: ProfileTask, conditions: Conditions) -> Result:
    check_plants(conditions.plants)
    asked = replace(task.asked, look=replace(task.asked.look, vetoes=conditions.vetoes))
    task = replace(task, asked=asked, memory=conditions.limits.memory, seconds=conditions.limits.seconds)
    with open_pool(conditions, 1, least_threads=LEAST_THREADS) as pool:
        try:
            return pool.schedule(function, (task,), label=f"profile {task.path.name}").result()
        except FuzzcompileError:
            raise
        except WorkerStartFailed as error:
            raise make_start_error(error) from error
        except (WorkerFailed, MemoryError, RemoteError) as error:
            text = " ".join(str(error).split())[:400]
            why = f"{text}; triage {'may say more' if isinstance(error, RemoteError) else 'judges crashes'}"
            if isinstance(error, WorkerTimeout):
                why = f"it was {text}; raise --timeout, or profile a part with --module"
            elif isinstance(error, WorkerOutOfMemory | MemoryError):
                why = f"memory ran out ({text}); raise --max-memory, or profile a part with --module"
            raise EnvironmentUnfit(f"{task.path} could not be profiled: {why}.") from error


def _triage_layer(
    profiled: ProfileJson, task: ProfileTask, conditions: Conditions, progress: Callable[[str], None]
) -> ProfileJson:
    layer, notes = profiled["layer"], list(profiled["notes"])
    of_layer: ReportJson | None = None
    if layer is not None:
        name = ObservableName.parse(layer.partition("#")[0]).what  # on all ranks
        progress(f"triaging {name} alone, on its own inputs")
        answer = _triage_part(task, f"{task.module}.{name}" if task.module else name, conditions)
        of_layer = answer.report
        if of_layer is None:
            notes.append(f"{name} could not be triaged alone: {answer.error}")
        elif of_layer["is_bug"]:
            return {"triage": of_layer, "notes": notes}
        else:
            notes.append(f"{name} alone shows no bug ({of_layer['verdict']}): the whole program was triaged as well")
    progress("triaging the whole program")
    answer = _triage_part(task, task.module, conditions)
    if answer.report is None:
        notes.append(f"the whole program could not be triaged: {answer.error}")
    return {"triage": of_layer, "triage_whole": answer.report, "notes": notes}


def _triage_part(task: ProfileTask, module: str | None, conditions: Conditions) -> FileAnswer:
    question = replace(task.ask_about(module), thorough=True)
    (answer,) = triage_files([task.path], conditions, question)
    return answer
