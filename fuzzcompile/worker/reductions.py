"""The task that a pool gives a worker to minimize a finding, and its result. Plain data: needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fuzzcompile.contract import ReportJson
from fuzzcompile.execution.named import Named
from fuzzcompile.generation import Profile
from fuzzcompile.reduction.outcome import Outcome

# Seconds that a minimization needs after its search: to judge and confirm the reproducer and to make the script for an
# issue (11 to 14 s of processor time, measured), to judge and confirm it only; and the shortest search worth beginning.
CONCLUDING, CONFIRMING, LEAST_SEARCH = 25.0, 12.0, 10.0
# Candidates with recipes that failed in another way, of one reduction.
_MAX_OTHERS = 4


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
        left: what a lost worker left of the same minimization (:mod:`fuzzcompile.worker.asking`); empty at first.
    """

    source: str
    report: ReportJson
    choices: bytes | None
    profile: Profile
    seconds: float
    tests: int = 100
    vetoes: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)

    def resumed(self, left: Mapping[str, str]) -> MinimizeTask:
        """Return the same minimization, continued from the state of a worker that had taken over ``self.left``."""
        return replace(self, left=left)


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


MINIMIZE: Callable[[MinimizeTask], Minimized] = Named("fuzzcompile.worker.minimize:minimize")
"""Minimize a finding on the worker's device; the result has the same signature."""
