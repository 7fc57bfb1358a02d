"""The kernels that one compile or run for a target launched, and those that it could not interpret."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

LaunchGrid = tuple[int, int, int]


class ProgramOrder(enum.Enum):
    """The order in which the programs of a grid run: a result that depends on it shows a race between programs."""

    FORWARD = "forward"
    BACKWARD = "backward"


class NotInterpreted(Exception):
    """A kernel that the interpreter cannot run: it says nothing about the kernel. ``why`` is one sentence."""

    def __init__(self, kernel: str, why: str) -> None:
        super().__init__(f"{kernel} was not interpreted: {why}")
        self.kernel = kernel
        self.why = why


class KernelTooLarge(NotInterpreted):
    """A kernel with more programs, or one that takes longer, than one launch may."""


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel."""

    kernel: str
    grid: LaunchGrid
    config: Mapping[str, object]  # block sizes by parameter
    configs: int  # among so many a GPU would have chosen by timing
    seconds: float
    notes: tuple[str, ...] = ()  # what the interpreter saw, such as accesses outside a buffer


@dataclass
class KernelLog:
    """Everything that happened to kernels in one compile and its runs."""

    sources: dict[str, str] = field(default_factory=dict)
    launches: list[KernelLaunch] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # why kernels were not interpreted, nor are launches
    undecided: dict[str, None] = field(default_factory=dict)  # what a GPU would have decided by timing

    def add_undecided(self, question: str) -> None:
        """Write down a question that only timing on a device answers."""
        self.undecided.setdefault(question)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all launches, once each."""
        return tuple(dict.fromkeys(note for launch in self.launches for note in launch.notes))

    def summarise(self) -> str:
        """``interpreted``, or how many of the kernels that were launched were, and why the others were not."""
        if not self.refused:
            return "interpreted"
        interpreted = {launch.kernel for launch in self.launches} - set(self.refused)
        reasons = "; ".join(f"{kernel}: {why}" for kernel, why in self.refused.items())
        return f"{len(interpreted)} of {len(interpreted) + len(self.refused)} kernels interpreted ({reasons})"
