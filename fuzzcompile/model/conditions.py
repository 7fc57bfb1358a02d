"""The question about a case, the conditions under which it runs, and what its vetoes mean. Needs no torch."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fuzzcompile.model.contract import AOTI, EXPORT
from fuzzcompile.model.custom import Custom
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.facts import find_facts
from fuzzcompile.model.targets import find_target
from fuzzcompile.model.tolerances import Tolerances
from fuzzcompile.model.versions import installed_torch

_OPTION = re.compile(r"auto|cpu|cuda(?::(?P<index>\d+))?")


def parse_device_index(option: str) -> int:
    """The index in ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, 0 where there is none; UsageError for anything else."""
    match = _OPTION.fullmatch(option)
    if match is None:
        raise UsageError(f"{option!r} is not a device; use auto, cpu, cuda or cuda:N.")
    return int(match["index"] or 0)


@dataclass(frozen=True)
class Limits:
    """Time (seconds) and memory (bytes) that one case may take."""

    seconds: float = 180.0
    memory: int = 8 * 2**30  # enough for generated cases, and a case that keeps growing does not take the machine down


@dataclass(frozen=True)
class Conditions:
    """Conditions under which cases run."""

    # ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; with a target ``cpu`` (:func:`choose_running_device`)
    device: str = "auto"
    vetoes: tuple[str, ...] = ()  # rewrites to refuse in every case
    plants: tuple[Path, ...] = ()  # files that each worker runs before its first task, to plant bugs
    limits: Limits = field(default_factory=Limits)  # time and memory of one case
    # the device that the compiler is told (:mod:`fuzzcompile.model.targets`); None for the one that runs
    target: str | None = None
    custom: Custom = field(default_factory=Custom)  # the user's own passes and backend that cases are compiled with

    def options(self) -> dict[str, object]:
        """The options of the command line that ask for the same, for :func:`fuzzcompile.model.hints.format_command`."""
        device = "auto" if self.target is not None else self.device
        limits = {"timeout": self.limits.seconds, "max_memory": self.limits.memory / 2**30}
        own = self.custom.options()
        return {"device": device, "target": self.target, "veto": self.vetoes, "plant": self.plants, **own, **limits}


def choose_running_device(device: str, target: str | None) -> str:
    """The device on which cases run: for a target the CPU; UsageError for a GPU then, and for what there is not."""
    parse_device_index(device)
    if target is None:
        return device
    find_target(target)
    if device.startswith("cuda"):
        raise UsageError(
            f"With --target {target} cases run on the CPU: leave out --device {device}, or leave out --target to "
            "compile for the GPU that runs."
        )
    return "cpu" if device == "auto" else device


Contract = Literal["values", "bitwise"]


@dataclass(frozen=True)
class Question:
    """The question about a case."""

    against: str = "eager"  # what the compiled program is compared with
    call: int | None = None  # the call of a script to judge; 1 is the first
    module: str | None = None  # the submodule to judge instead of the whole case
    thorough: bool = False  # spend further compiles on evidence, for which a campaign has no time
    dump: str | None = None  # a folder for every graph and rewrite of the judged compile, as text
    suspects: tuple[str, ...] = ()  # rewrites that the user asks about
    # how far compiled and ``against`` may be apart; None for the table that comes with fuzzcompile
    tolerances: Tolerances | None = None
    math_only: bool = False  # run every attention on the math kernel, and float32 products in float32
    contract: Contract = "values"  # ``values``, or ``bitwise`` for the promises of equal bits too
    error_maps: bool = False  # say where in each output the errors are, for a page to draw
    nproc: int | None = None  # processes that run the case together, as under ``torchrun``; None for one
    arguments: tuple[str, ...] = ()  # of a script: what follows its name in ``sys.argv``

    def options(self) -> dict[str, object]:
        """The options of the command line that ask the same of the case."""
        against = None if self.against == "eager" else self.against
        contract = None if self.contract == "values" else self.contract
        own = {"call": self.call, "module": self.module, "math_only": self.math_only, "nproc": self.nproc}
        return {**own, "against": against, "contract": contract, "arguments": self.arguments}

    def __post_init__(self) -> None:
        if self.contract == "bitwise" and self.against != "eager":
            raise UsageError("The bitwise contract compares with eager: leave out --against or --contract.")
        if self.contract == "bitwise" and self.nproc is not None:
            raise UsageError("The bitwise contract is judged in one process: leave out --nproc or --contract.")


# Beside these, every mode of torch.compile.
BASELINES = ("eager", "float64", "aot_eager", "cpu", EXPORT, AOTI)


def check_against(against: str, modes: Collection[str]) -> None:
    """Refuse by a UsageError what compiled cannot be compared with; every one of torch's ``modes`` it can."""
    known = (*BASELINES, *modes)
    if against not in known:
        raise UsageError(f"Nothing can be compared with {against!r}; use one of {', '.join(known)}.")


def list_modes() -> tuple[str, ...] | None:
    """The modes of ``torch.compile``; None if no facts are about the installed torch, EnvironmentUnfit without one."""
    version = installed_torch()
    if not version:
        raise EnvironmentUnfit("torch is not installed in this environment; install it beside fuzzcompile.")
    known = find_facts(version)
    return known.names.modes if known.exact else None


def matches_veto(rewrite: str, base: str, name: str) -> bool:
    """Return whether ``name`` after ``--veto`` means a rewrite, whose name without its variant is ``base``.

    ``name`` is that name itself, a leading part that ends at an underscore or at the end, a glob, or ``=`` and the name
    with or without its variant.
    """
    if name.startswith("="):
        return name[1:] in (rewrite, base)
    if rewrite == name or fnmatch.fnmatchcase(rewrite, name):
        return True
    return bool(name) and rewrite.startswith(name) and (name.endswith("_") or rewrite[len(name)] == "_")
