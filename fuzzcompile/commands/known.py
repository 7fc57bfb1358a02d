"""Everything that the compiler registers for a device, or for a target, for which a process of its own compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from fuzzcompile.compiler.catalogue import Known, known_to
from fuzzcompile.execution.pool import WorkerStartFailed
from fuzzcompile.worker.conditions import Conditions, Limits
from fuzzcompile.worker.lost import unstartable
from fuzzcompile.worker.pool import open_pool

# A process that compiles for a target registers its patterns first; trying all of those for attention takes minutes.
_SECONDS = 900.0

Result = TypeVar("Result")


def known_for(device: torch.device, target: str | None) -> list[Known]:
    """Everything that the installed torch registers for ``device``, or for the target.

    Raises:
        EnvironmentUnfit: no worker can be started for the target.
    """
    return known_to(device) if target is None else asked_of(target, _sent, device)


def _sent(device: torch.device) -> list[Known]:
    """Return what is registered, without torch's own objects, which a process cannot send."""
    return [replace(row, made_of=()) for row in known_to(device)]


def asked_of(target: str, ask: Callable[[torch.device], Result], device: torch.device) -> Result:
    """Return the result of ``ask`` for ``device`` in a process that compiles for the target.

    Raises:
        EnvironmentUnfit: no worker can be started for it.
    """
    with open_pool(Conditions(str(device), limits=Limits(_SECONDS), target=target), 1) as pool:
        try:
            return pool.submit(ask, device).result()
        except WorkerStartFailed as error:
            raise unstartable(error) from error
