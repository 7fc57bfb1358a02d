"""Profiling a case in a worker process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.analyses.profile.layer_profile import ProfileOptions, profile
from fuzzcompile.analyses.profile.recordings import RecordedRun, record
from fuzzcompile.analyses.profile.side_runs import Look
from fuzzcompile.analyses.profile.sides import Side
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.model.profile_contract import ProfileJson
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.run.case import Case
from fuzzcompile.run.footprint import refuse_oversized
from fuzzcompile.run.pool.worker import get_current_device, restore_streams


@dataclass(frozen=True)
class ProfileTask:
    """One case to profile.

    Attributes:
        path: the case file or script.
        asked: what is compared with what.
        call: the call of a script; None for the first.
        module: the submodule to profile instead of the whole case.
        memory: bytes of this process beyond which the case is refused before it runs.
    """

    path: str
    asked: ProfileOptions
    call: int | None = None
    module: str | None = None
    memory: int | None = None


def profile_file(task: ProfileTask) -> ProfileJson:
    """Profile one case on this worker's device.

    Raises:
        CaseError: the file is not a case.
        CannotRun: it raises in one of the ways that are to be compared.
        EnvironmentUnfit: it needs more than ``task.memory``, or a kernel or device that is not there.
        UsageError: the tolerances cannot be used.
    """
    with _load_case(task) as (case, device):
        return profile(case, device, task.asked)


@dataclass(frozen=True)
class RecordTask:
    """One case to run and record (see :func:`record`)."""

    path: str
    side: Side
    recording: str
    look: Look
    math_only: bool = False
    call: int | None = None
    module: str | None = None
    memory: int | None = None


def record_file(task: RecordTask) -> RecordedRun:
    """Run one case on this worker's device, and record it.

    Raises:
        CaseError: the file is not a case.
        CannotRun: it raises.
        EnvironmentUnfit: it needs more than ``task.memory``, the disk is full, or there is no such kernel or device.
        UsageError: the recording cannot be written there.
    """
    with _load_case(task) as (case, device):
        return record(case, device, task.side, Path(task.recording), look=task.look, math_kernel=task.math_only)


@contextlib.contextmanager
def _load_case(task: ProfileTask | RecordTask) -> Iterator[tuple[Case, torch.device]]:
    device = torch.device(get_current_device())
    with isolate_process():
        case = load(Path(task.path), device, call=task.call, module=task.module)
        restore_streams()  # the script may have closed them, and the compiler writes to them
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        yield case, device
