"""The focus of a campaign as a worker found it: plain data that the campaign's process draws from and counts by."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fuzzcompile.model.stages import BEHIND_GRAPHS, FREEZING, POST_GRAD

END = 10**9
"""The last line of a file, however long it is."""


@dataclass(frozen=True, order=True)
class Span:
    """Lines of a file of the compiler."""

    file: str  # relative to the folder that holds torch: ``torch/_inductor/ir.py``
    first: int = 1  # the first line, from 1
    last: int = END  # the last line, included

    def __str__(self) -> str:
        if (self.first, self.last) == (1, END):
            return self.file
        return f"{self.file}:{self.first}" + (f"-{self.last}" if self.last != self.first else "")

    def contains(self, file: str | None, line: int | None) -> bool:
        """Return whether it has that line of that file."""
        return file == self.file and line is not None and self.first <= line <= self.last

    def overlaps(self, span: Span) -> bool:
        """Return whether the two have a line in common."""
        return self.file == span.file and self.first <= span.last and span.first <= self.last


AimKind = Literal["pass", "pattern", "operator", "lines"]
AimRule = tuple[str, str]
"""Stage and name, as a ledger counts a rule; an operator is counted as a decomposition and as a lowering."""
AimOperators = tuple[tuple[str, ...], ...]
"""For each place in a pattern, the operators that may stand there."""

# Of the cases for an aim, the share that is judged in full at once: what lies behind the graphs shows in no screen.
_FULL_BEHIND, _FULL_LATE, _FULL_EARLY = 0.9, 0.4, 0.2


@dataclass(frozen=True)
class FocusQuestion:
    """The focus that a user gives: names of rules, passes and operators, and lines of the installed compiler.

    With ``every``, all rules of the graph passes are aimed at, each by itself. ``target`` is the device that the
    compiler is told, if it is not the one that runs; ``notes`` are sentences on names that could not be resolved.
    """

    names: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    every: bool = False
    target: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FocusAim:
    """One rule, pass, operator or range of lines."""

    label: str  # what the summary calls it
    kind: AimKind  # what it is
    stage: str  # its stage; empty for lines
    rules: tuple[AimRule, ...] = ()  # what counts for it: of a pass also its patterns, of lines nothing
    settings: Mapping[str, object] = field(default_factory=dict)  # what switches it on; empty where it is on
    when: str = ""  # the condition under which it runs
    why_not: str = ""  # why nothing can make it fire here, whatever is set; empty where that is not known
    operators: AimOperators = ()  # what its pattern looks for
    spans: tuple[Span, ...] = ()  # the lines, where lines are aimed at
    beside: tuple[AimRule, ...] = ()  # operators whose code the lines are part of, so that programs of these run them

    @property
    def sources(self) -> tuple[AimRule, ...]:
        """The rules whose programs make it fire."""
        return (*(rule for rule in self.rules if self.kind != "operator" or rule[0] == self.stage), *self.beside)

    @property
    def full_share(self) -> float:
        """The share of its cases to judge in full at once."""
        if self.kind == "lines" or self.stage in BEHIND_GRAPHS:
            return _FULL_BEHIND
        return _FULL_LATE if self.stage in (POST_GRAD, FREEZING) else _FULL_EARLY


@dataclass(frozen=True)
class FocusPlan:
    """Aims of a campaign; ``notes`` are sentences for the user on names that could not be resolved."""

    aims: tuple[FocusAim, ...]
    notes: tuple[str, ...] = ()

    @property
    def reachable(self) -> tuple[FocusAim, ...]:
        """The aims against which nothing is known."""
        return tuple(aim for aim in self.aims if not aim.why_not)

    @property
    def name(self) -> str:
        """Tells streams of cases apart: ``focus=`` and a hash of what is aimed at."""
        text = repr([(aim.label, aim.rules, sorted(aim.settings), aim.spans) for aim in self.aims])
        return f"focus={hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def watch(self) -> FocusWatch:
        """Return the observations of workers beyond what every case covers."""
        patterns = tuple(rule for aim in self.aims if aim.kind in ("pass", "pattern") for rule in aim.rules)
        operators = {name for aim in self.aims for place in aim.operators for name in place}
        return FocusWatch(patterns, tuple(sorted(operators)), tuple(span for aim in self.aims for span in aim.spans))


@dataclass(frozen=True)
class FocusWatch:
    """Observations that a worker makes for a focus."""

    rules: tuple[AimRule, ...] = ()  # whose refusals are explained
    operators: tuple[str, ...] = ()  # which of these the graphs call
    spans: tuple[Span, ...] = ()  # whether these lines run


@dataclass(frozen=True)
class FocusObservation:
    """Results of a `FocusWatch` for one judged case."""

    # how often a check refused a rule: stage and name of the rule, the check
    checks: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()  # those that were called
    spans: frozenset[Span] = frozenset()  # those of which a line ran
    lines: frozenset[tuple[str, int]] = frozenset()  # the lines that ran
    unwatched: tuple[str, ...] = ()  # what could not be watched, as sentences
