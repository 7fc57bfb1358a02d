"""How often each aim of a campaign fired, was refused and by what, or what it lacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fuzzcompile.model.focus_plan import FocusAim, FocusObservation, FocusPlan

FOCUS = "focus"
"""Stands for the stage in the items of a case that ran lines which are aimed at."""
Counted = tuple[str, str, str, int]
"""Stage, rule, outcome and count, as a case covered it."""


@dataclass
class AimTally:
    """The counts of one aim.

    ``called`` counts operators that were called instead of lowered, ``cases`` those judged cases in which it matched.
    """

    aim: FocusAim
    fired: int = 0
    refused: int = 0
    called: int = 0
    cases: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    operators: set[str] = field(default_factory=set)
    lines: set[tuple[str, int]] = field(default_factory=set)

    @property
    def matched(self) -> int:
        """How often its pattern matched, whatever became of the match; of an operator, how often it was met."""
        return self.fired + self.refused + self.called

    def count(self, coverage: Iterable[Counted], seen: FocusObservation) -> bool:
        """Add what one case covered; whether it matched."""
        before = self.matched
        for stage, rule, outcome, count in coverage:
            if (stage, rule) in self.aim.rules:
                self.fired += count * (outcome == "fired")
                self.refused += count * (outcome == "refused")
                self.called += count * (outcome == "fallback")
        self.fired += any(span in seen.spans for span in self.aim.spans)
        for (stage, rule, check), count in seen.checks.items():
            self.checks[check] += count * ((stage, rule) in self.aim.rules)
        self.checks += Counter()  # drops zeros
        self.operators |= seen.operators
        self.lines |= {place for place in seen.lines if any(span.contains(*place) for span in self.aim.spans)}
        self.cases += self.matched > before
        return self.matched > before

    @property
    def missing(self) -> str:
        """What a match lacks, where there was none: a reason, a setting, operators that no graph had."""
        if self.matched:
            return ""
        if self.aim.why_not:
            return self.aim.why_not
        absent = [place[0] for place in self.aim.operators if not self.operators.intersection(place)]
        if absent:
            return f"no graph called {', '.join(dict.fromkeys(absent))}"
        if self.aim.operators:
            return "every operator of its pattern was called, but never in its form"
        return "the lines never ran" if self.aim.spans else "nothing in the graphs was what it looks for"

    def to_json(self) -> dict[str, object]:
        """The entry of the summary."""
        entry: dict[str, object] = {"fired": self.fired, "refused": self.refused, "matched": self.matched}
        entry |= {"kind": self.aim.kind, "stage": self.aim.stage or None, "cases": self.cases}
        if self.called:
            entry["called"] = self.called
        if self.aim.spans:
            entry["lines"] = len(self.lines)
        if self.aim.settings:
            entry["settings"] = dict(self.aim.settings)
        return entry | {"checks": dict(self.checks), "missing": self.missing or None}


@dataclass
class FocusTally:
    """The counts of a campaign with a focus."""

    plan: FocusPlan
    aims: list[AimTally] = field(init=False)
    unwatched: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.aims = [AimTally(aim) for aim in self.plan.aims]

    def count(self, coverage: Collection[Counted], seen: FocusObservation) -> None:
        """Add what one case covered."""
        self.unwatched.update(seen.unwatched)
        for aim in self.aims:
            aim.count(coverage, seen)

    def to_json(self) -> dict[str, dict[str, object]]:
        """The entries of the summary, by label."""
        return {tally.aim.label: tally.to_json() for tally in self.aims}

    def format_lines(self) -> list[str]:
        """The counts in words, one line for each aim, and what could not be watched."""
        return [*map(_format_line, self.aims), *(f"Not watched: {what}" for what in sorted(self.unwatched))]


def _format_line(tally: AimTally) -> str:
    if not tally.matched:
        return f"{tally.aim.label}: never matched; {tally.missing}"
    if tally.aim.spans:
        return f"{tally.aim.label}: ran in {tally.fired} cases, {len(tally.lines)} different lines"
    parts = [f"fired {tally.fired}", f"refused {tally.refused}" if tally.aim.kind != "operator" else ""]
    parts.append(f"called, not lowered, {tally.called}" if tally.called else "")
    by = ", ".join(f"{check} ({count})" for check, count in tally.checks.most_common(3))
    return f"{tally.aim.label}: {', '.join(filter(None, parts))}" + (f"; refused by {by}" if by else "")
