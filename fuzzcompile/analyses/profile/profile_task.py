"""Profiling or recording a case in a worker process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.analyses.profile.layer_profile import ProfileOptions, profile
from fuzzcompile.analyses.profile.recordings import RecordedRun, record
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.model.profile_contract import ProfileJson
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.run.case import Case
from fuzzcompile.run.footprint import refuse_oversized
from fuzzcompile.run.pool.worker import get_current_device, restore_streams


@dataclass(frozen=True)
class ProfileTask:
    """One case to profile, or to record in the file ``recording`` as ``asked.against`` runs it.

    ``call`` is that of a script (None: the first), ``module`` the submodule to look at instead of the whole case, and
    ``memory`` the bytes of this process beyond which the case is refused before it runs.
    """

    path: str
    asked: ProfileOptions
    call: int | None = None
    module: str | None = None
    memory: int | None = None
    recording: str = ""


def profile_file(task: ProfileTask) -> ProfileJson:
    """Profile one case on this worker's device.

    Raises:
        FuzzcompileError: the case cannot be loaded, raises in one of the ways that are to be compared, or needs more
            memory, or a kernel or device that is not there.
    """
    with _load_case(task) as (case, device):
        return profile(case, device, task.asked)


def record_file(task: ProfileTask) -> RecordedRun:
    """Run one case on this worker's device, and record it.

    Raises:
        FuzzcompileError: as :func:`profile_file`, or the recording cannot be written there.
    """
    asked = task.asked
    with _load_case(task) as (case, device):
        path = Path(task.recording)
        return record(case, device, asked.against, path, look=asked.look, math_kernel=asked.math_only)


@contextlib.contextmanager
def _load_case(task: ProfileTask) -> Iterator[tuple[Case, torch.device]]:
    device = torch.device(get_current_device())
    with isolate_process():
        case = load(Path(task.path), device, call=task.call, module=task.module)
        restore_streams()  # the script may have closed them, and the compiler writes to them
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        yield case, device
