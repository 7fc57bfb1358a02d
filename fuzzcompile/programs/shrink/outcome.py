"""The result of a reduction, and the answers to its questions. Plain data: needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fuzzcompile.model.contract import ReportJson, ShownJson


class DrawnSource(Protocol):
    """A source that a generator drew from choices."""

    @property
    def source(self) -> str:
        """The text of the case."""

    @property
    def choices(self) -> bytes:
        """The choices that the generator read it from."""


class Recipe(Protocol):
    """The choices of a generated case, which can be shrunk themselves: each candidate is a case of the generator."""

    def shrink(
        self,
        is_interesting: Callable[[DrawnSource], bool],
        *,
        max_tests: int,
        deadline: float | None,
        on_test: Callable[[DrawnSource], None],
    ) -> DrawnSource | None:
        """Return the simplest case found that is still interesting; None if the case itself is not.

        What ``is_interesting`` raises propagates; ``max_tests`` bounds its calls, and ``deadline`` is a value of
        ``time.monotonic()``. ``on_test`` gets the best case so far, after each test once there is one.
        """


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe of a candidate.

    ``matches``: it shows the bug that the search is locked to. ``is_bug``: it shows some bug. ``compiles`` and
    ``screens`` are what the probe took.
    """

    matches: bool
    is_bug: bool
    verdict: str
    compiles: int = 1
    screens: int = 0


@dataclass
class SearchTally:
    """The cost of a search, its answers by digest, and the sources that show other bugs, by digest.

    ``thorough``: the answers come from probes that refine verdicts as triage does; ``loose``: from those that hold a
    candidate by the kind of its verdict.
    """

    compiles: int = 0
    screens: int = 0
    thorough: bool = False
    loose: bool = False
    answers: dict[str, bool] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)

    def add(self, probed: ProbeResult) -> None:
        """Add the cost of a probe."""
        self.compiles += probed.compiles
        self.screens += probed.screens

    @property
    def tests(self) -> int:
        """Compiles and screens together."""
        return self.compiles + self.screens


@dataclass
class MinimizeResult:
    """A small case made of ``original``, its own report, and the reproducer built from it.

    ``how`` is "recipe", "graph", "text" or "as found"; ``changed`` is false if nothing smaller was found. ``note`` is
    one sentence for the user. ``operators_before`` and ``operators`` count calls of torch functions in the captured
    graphs (None: not captured). ``others`` are a few generated cases with other bugs; ``tally`` has all such sources.
    The result of an ``interrupted`` search is neither judged again nor confirmed. ``shown`` is the script for an issue
    and what it showed, ``program_key`` identifies the program of ``source`` up to names; None where they were not made.
    """

    source: str
    report: ReportJson
    reproducer: str = ""
    confirmed: bool = False
    confirmation: str = ""
    neighbour: str | None = None
    how: str = "as found"
    changed: bool = False
    note: str = ""
    tally: SearchTally = field(default_factory=SearchTally)
    seconds: float = 0.0
    finished: bool = True
    operators_before: int | None = None
    operators: int | None = None
    others: tuple[DrawnSource, ...] = ()
    interrupted: bool = False
    shown: ShownJson | None = None
    program_key: str | None = None
    original: str = ""

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
