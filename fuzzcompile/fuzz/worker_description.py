"""Description of a worker before its first case, so that the campaign's own process needs no torch."""

from __future__ import annotations

import functools

import torch

from fuzzcompile.compiler.custom_code import list_loaded
from fuzzcompile.compiler.torch_config import find_unknown_options
from fuzzcompile.fuzz.distributed_programs.grammar import load_settings
from fuzzcompile.fuzz.operator_programs.numerics import load_operator_table
from fuzzcompile.model.compiler_toggles import FOR_GPU, TOGGLES
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.judge_task import WorkerDescription
from fuzzcompile.run.device import Numerics, describe_environment
from fuzzcompile.run.pool.worker import get_current_device
from fuzzcompile.run.subprocesses import find_toolchain_fault


def describe_worker(target: str | None) -> WorkerDescription:
    """Describe this worker, whose compiler is told ``target``; `EnvironmentUnfit` without a C++ compiler that works."""
    device = torch.device(get_current_device())
    if device.type == "cpu" and (fault := find_toolchain_fault()) is not None:
        raise EnvironmentUnfit(f"torch.compile needs a C++ compiler on the CPU: {fault}.")
    return WorkerDescription(
        describe_environment(device, target), device.type, list_lacking(target), Numerics().to_json(), list_loaded()
    )


def list_lacking(target: str | None) -> tuple[str, ...]:
    """Names of the generator's settings and operators that the installed torch does not have."""
    toggles = TOGGLES if target is None else (*TOGGLES, *FOR_GPU)
    settings = [(toggle.name, dict(toggle.options), toggle.config) for toggle in toggles]
    settings += [(row.name, dict(row.options), None) for row in load_settings()]
    unknown = [name for name, options, config in settings if find_unknown_options(options, config)]
    return (*unknown, *(name for name in load_operator_table().names if not _torch_has(name)))


def _torch_has(name: str) -> bool:
    root, *path = name.split(".")
    value: object = {"torch": torch, "F": torch.nn.functional, "Tensor": torch.Tensor}.get(root)
    return functools.reduce(lambda value, part: getattr(value, part, None), path, value) is not None
