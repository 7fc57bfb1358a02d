"""Profiling a case in a worker process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.capture.loading import load
from fuzzcompile.contract import ProfileJson
from fuzzcompile.execution.footprint import refuse_oversized
from fuzzcompile.execution.worker import current_device, restore_streams
from fuzzcompile.profiling.engine import Asked, profile
from fuzzcompile.worker.isolation import isolated


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
    asked: Asked
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
    device = torch.device(current_device())
    with isolated():
        case = load(Path(task.path), device, call=task.call, module=task.module)
        restore_streams()  # the script may have closed them, and the compiler writes to them
        if task.memory is not None:
            refuse_oversized(case, device, task.memory)
        return profile(case, device, task.asked)
