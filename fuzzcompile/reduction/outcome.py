"""The result of a reduction, and the answers to its questions. Plain data: needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzzcompile.contract import ReportJson, ShownJson
from fuzzcompile.generation import GeneratedCase


@dataclass(frozen=True)
class Probed:
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
class Tally:
    """The cost of a search, its answers by digest, and the sources that show other bugs, by digest.

    ``thorough``: the answers come from probes that refine verdicts as triage does.
    """

    compiles: int = 0
    screens: int = 0
    thorough: bool = False
    answers: dict[str, bool] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)

    def add(self, probed: Probed) -> None:
        """Add the cost of a probe."""
        self.compiles += probed.compiles
        self.screens += probed.screens

    @property
    def tests(self) -> int:
        """Compiles and screens together."""
        return self.compiles + self.screens


@dataclass(frozen=True)
class Outcome:
    """A small case, its own report, and the reproducer built from it.

    ``how`` is "recipe", "graph", "text" or "as found"; ``changed`` is false if nothing smaller was found. ``note`` is
    one sentence for the user. ``operators_before`` and ``operators`` count calls of torch functions in the captured
    graphs (None: not captured). ``others`` are generated cases that show other bugs; ``tally`` has all such sources.
    The result of an ``interrupted`` search is neither judged again nor confirmed. ``shown`` is the script for an issue
    and what it showed, ``program_key`` identifies the program of ``source`` up to names; None where they were not made.
    """

    source: str
    report: ReportJson
    reproducer: str
    confirmed: bool
    confirmation: str
    neighbour: str | None
    how: str
    changed: bool
    note: str
    tally: Tally
    seconds: float
    finished: bool
    operators_before: int | None
    operators: int | None
    case: GeneratedCase | None = None
    others: tuple[GeneratedCase, ...] = ()
    interrupted: bool = False
    shown: ShownJson | None = None
    program_key: str | None = None
