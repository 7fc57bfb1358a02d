"""What is asked about a case, and under which conditions it runs. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


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
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        vetoes: rewrites to refuse in every case.
        plants: files that each worker runs before its first task, to plant bugs.
        limits: time and memory of one case.
    """

    device: str = "auto"
    vetoes: tuple[str, ...] = ()
    plants: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)


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
    """

    against: str = "eager"
    call: int | None = None
    module: str | None = None
    thorough: bool = False
    dump: str | None = None
    suspects: tuple[str, ...] = ()
