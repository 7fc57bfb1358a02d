"""What is asked about a case, and under which conditions it runs. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fuzzcompile.model.custom import Custom
from fuzzcompile.model.device_option import device_index
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.targets import find_target
from fuzzcompile.model.tolerances import Tolerances


@dataclass(frozen=True)
class Limits:
    """Time (seconds) and memory (bytes) that one case may take.

    The memory is enough for generated cases, and small enough that a case that keeps growing does not take the machine
    down.
    """

    seconds: float = 180.0
    memory: int = 8 * 2**30


@dataclass(frozen=True)
class Conditions:
    """How cases run.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; with a target ``cpu`` (:func:`running_device`).
        vetoes: rewrites to refuse in every case.
        plants: files that each worker runs before its first task, to plant bugs.
        limits: time and memory of one case.
        target: the device that the compiler is told (:mod:`fuzzcompile.model.targets`); None for the one that runs.
        custom: the user's own passes and backend that cases are compiled with.
    """

    device: str = "auto"
    vetoes: tuple[str, ...] = ()
    plants: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)
    target: str | None = None
    custom: Custom = field(default_factory=Custom)

    def options(self) -> dict[str, object]:
        """The options of the command line that ask for the same, for :func:`fuzzcompile.model.hints.format_command`."""
        device = "auto" if self.target is not None else self.device
        limits = {"timeout": self.limits.seconds, "max_memory": self.limits.memory / 2**30}
        own = self.custom.options()
        return {"device": device, "target": self.target, "veto": self.vetoes, "plant": self.plants, **own, **limits}


def running_device(device: str, target: str | None) -> str:
    """The device on which cases run, of those that the user named: for a target, the CPU.

    Raises:
        UsageError: ``device`` is spelled otherwise, there is no such target, or a GPU is to run what is compiled for
            a target.
    """
    device_index(device)
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
    """What is asked about a case.

    Attributes:
        against: what the compiled program is compared with.
        call: the call of a script to judge; 1 is the first.
        module: the submodule to judge instead of the whole case.
        thorough: spend further compiles on evidence, for which a campaign has no time.
        dump: a folder for every graph and rewrite of the judged compile, as text.
        suspects: rewrites that the user asks about.
        tolerances: how far compiled and ``against`` may be apart; None for the table that comes with fuzzcompile.
        math_only: run every attention on the math kernel, and float32 products in float32.
        contract: ``values``, or ``bitwise`` for the promises of equal bits too.
        error_maps: say where in each output the errors are, for a page to draw.
    """

    against: str = "eager"
    call: int | None = None
    module: str | None = None
    thorough: bool = False
    dump: str | None = None
    suspects: tuple[str, ...] = ()
    tolerances: Tolerances | None = None
    math_only: bool = False
    contract: Contract = "values"
    error_maps: bool = False

    def options(self) -> dict[str, object]:
        """The options of the command line that ask the same of the case."""
        other = {"against": self.against, "contract": self.contract}
        default = {"against": "eager", "contract": "values"}
        changed = {name: value for name, value in other.items() if value != default[name]}
        return {"call": self.call, "module": self.module, "math_only": self.math_only, **changed}

    def __post_init__(self) -> None:
        if self.contract == "bitwise" and self.against != "eager":
            raise UsageError("The bitwise contract compares with eager: leave out --against or --contract.")
