"""What a worker tells of itself before its first case, so that the campaign's own process needs no torch."""

from __future__ import annotations

import torch

from fuzzcompile.compiler.custom import loaded
from fuzzcompile.compiler.options import unknown_options
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.device import Numerics
from fuzzcompile.execution.environment import describe
from fuzzcompile.execution.toolchain import toolchain_fault
from fuzzcompile.execution.worker import current_device
from fuzzcompile.generation.operator_table import operator_table
from fuzzcompile.generation.toggles import FOR_GPU, TOGGLES
from fuzzcompile.worker.tasks import Surroundings


def surroundings(target: str | None) -> Surroundings:
    """Describe this worker, whose compiler is told ``target``.

    Raises:
        EnvironmentUnfit: there is no C++ compiler that works, which compiling for the CPU takes.
    """
    device = torch.device(current_device())
    if device.type == "cpu" and (fault := toolchain_fault()) is not None:
        raise EnvironmentUnfit(f"torch.compile needs a C++ compiler on the CPU: {fault}.")
    return Surroundings(describe(device, target), device.type, lacking(target), Numerics().to_json(), loaded())


def lacking(target: str | None) -> tuple[str, ...]:
    """Names of the generator's settings and operators that the installed torch does not have."""
    toggles = TOGGLES if target is None else (*TOGGLES, *FOR_GPU)
    unknown = [toggle.name for toggle in toggles if unknown_options(dict(toggle.options))]
    return (*unknown, *(name for name in operator_table().names if not _has(name)))


def _has(name: str) -> bool:
    """Whether the installed torch has the function that a call names ``torch.f``, ``F.f`` or ``Tensor.f``."""
    root, *path = name.split(".")
    value: object = {"torch": torch, "F": torch.nn.functional, "Tensor": torch.Tensor}.get(root)
    for part in path:
        value = getattr(value, part, None)
    return value is not None
