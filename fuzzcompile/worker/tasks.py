"""What a pool hands to a worker that judges, and what comes back. Plain data: needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzzcompile.contract import ReportJson
from fuzzcompile.execution.named import Named
from fuzzcompile.generation import Profile
from fuzzcompile.judging.counts import CoverageCount
from fuzzcompile.reduction.outcome import Outcome
from fuzzcompile.worker.conditions import Question

if TYPE_CHECKING:
    from fuzzcompile.variations import Survey

# Candidates with recipes that failed in another way, of one reduction.
_MAX_OTHERS = 4


@dataclass(frozen=True)
class WorkerSetup:
    """What `prepare` needs.

    Attributes:
        plants: files to run.
        threads: torch's intra-op threads.
        target: the device that the compiler is told, by its name; None for the one that runs.
    """

    plants: tuple[str, ...] = ()
    threads: int = 1
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeTask(Question):
    """One case file to judge, and what is asked about it.

    Attributes:
        path: the case file.
        vetoes: rewrites to refuse.
        marker: a path that is created once eager has finished and gets the report once there is a verdict, so that
            both survive the loss of the worker.
        known: (signature, kind of verdict) pairs that need no further proof.
        seconds: time after which attribution starts no further compile.
        memory: bytes of this process beyond which a case is refused before it runs.
        screen: judge without generated code, and in full only if that shows a bug.
        describe: also describe the machine, for a page.
    """

    path: str
    vetoes: tuple[str, ...] = ()
    marker: str | None = None
    known: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None
    memory: int | None = None
    screen: bool = False
    describe: bool = False


@dataclass(frozen=True)
class Judged:
    """A report in its JSON form, what the compile covered, and the machine if the task asked for it."""

    report: ReportJson
    coverage: tuple[CoverageCount, ...] = ()
    screened: bool = False
    machine: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Surroundings:
    """Where a worker runs.

    Attributes:
        environment: what results depend on.
        device: the type of its device.
        lacks: settings of the generator that its torch does not have.
        numerics: the switches under which floating-point results are made.
    """

    environment: Mapping[str, object]
    device: str
    lacks: tuple[str, ...] = ()
    numerics: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class MinimizeTask:
    """A finding to minimize.

    Attributes:
        source: the case.
        report: the report on it; its signature is the one to keep.
        choices: the recipe of a generated case.
        profile: the generator's profile under which ``choices`` were drawn.
        seconds: time for the search, not for the confirmation after it.
        tests: compiles and screens that the search may use.
        vetoes: rewrites to refuse.
    """

    source: str
    report: ReportJson
    choices: bytes | None
    profile: Profile
    seconds: float
    tests: int = 100
    vetoes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Minimized(Outcome):
    """The outcome of reducing ``original``; of ``others``, a few."""

    report: ReportJson
    original: str = ""

    @classmethod
    def of(cls, outcome: Outcome, original: str) -> Minimized:
        """The outcome of reducing ``original``."""
        return cls(**{**vars(outcome), "others": outcome.others[:_MAX_OTHERS], "original": original})

    @property
    def lines_before(self) -> int:
        """Lines of the original."""
        return len(self.original.splitlines())

    @property
    def lines_after(self) -> int:
        """Lines of the reproducer."""
        return len(self.reproducer.splitlines())

    @property
    def tests(self) -> int:
        """Compiles and screens that the search took."""
        return self.tally.tests

    @property
    def other_sources(self) -> tuple[str, ...]:
        """The sources of all candidates that failed in another way: secondary findings, to be judged."""
        return tuple(self.tally.others.values())


JUDGE: Callable[[JudgeTask], Judged] = Named("fuzzcompile.worker.judge:judge_file")
"""Judge one case file on the worker's device."""

MINIMIZE: Callable[[MinimizeTask], Minimized] = Named("fuzzcompile.worker.minimize:minimize")
"""Minimize a finding on the worker's device; the result has the same signature."""

DESCRIBE: Callable[[str | None], Surroundings] = Named("fuzzcompile.worker.surroundings:surroundings")
"""What a worker tells of itself, given the target."""

SURVEY: Callable[[str], Survey] = Named("fuzzcompile.worker.surveying:survey_file")
"""What can be varied of a case file, found on the worker's device."""
