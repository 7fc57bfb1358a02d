"""The budget of a campaign: a time or a number of cases."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzzcompile.model.errors import UsageError

# Seconds and share of a budget that are reserved for ending the workers and the summary; a busy machine needs more.
_ENDING, _ENDING_SHARE = 3.0, 0.05
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class CampaignBudget:
    """A time or a number of cases: exactly one of ``seconds`` and ``cases`` is set."""

    seconds: float | None = None
    cases: int | None = None

    @classmethod
    def parse(cls, text: str) -> CampaignBudget:
        """Read ``90s``, ``10m``, ``1h`` (fractions allowed) or ``200c``."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhc])", text.strip().lower())
        if match is None or float(match[1]) == 0 or (match[2] == "c" and "." in match[1]):
            raise UsageError(
                f"{text!r} is no budget: write a time such as 90s, 10m or 1h, or a number of cases such as 200c."
            )
        if match[2] == "c":
            return cls(cases=int(match[1]))
        return cls(seconds=float(match[1]) * _UNITS[match[2]])

    def reaches(self, seconds: float, cases: int) -> bool:
        """Return whether it is at least so many seconds, or cases."""
        return self.seconds >= seconds if self.seconds is not None else (self.cases or 0) >= cases

    def __str__(self) -> str:
        if self.cases is not None:
            return f"{self.cases} cases"
        return format_duration(self.seconds or 0.0)


@dataclass(frozen=True)
class BudgetClock:
    """The time of a budget, counted from the start of the command, so that starting the workers is included."""

    budget: CampaignBudget
    started: float = field(default_factory=time.monotonic)
    now: Callable[[], float] = time.monotonic

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.now() - self.started

    @property
    def remaining(self) -> float:
        """Seconds that are left for work, never negative; infinite for a budget of cases."""
        seconds = self.budget.seconds
        if seconds is None:
            return float("inf")
        return max(0.0, seconds - min(_ENDING, _ENDING_SHARE * seconds) - self.elapsed)

    @property
    def timeout(self) -> float | None:
        """`remaining` as a timeout: None, which means no limit, for a budget of cases."""
        return None if self.budget.seconds is None else self.remaining


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds of a budget that must be a time."""
    seconds = CampaignBudget.parse(text).seconds
    if seconds is None:
        raise UsageError(f"{option} takes a time such as 90s, 30m or 1h, not {text!r}.")
    return seconds


def format_progress(seconds: float, budget: CampaignBudget | None) -> str:
    """Format the progress of a job as ``0:12 of 1:00``; time beyond the budget is listed separately."""
    if budget is None or budget.seconds is None:
        return format_duration(seconds) + (f" of {budget}" if budget is not None else "")
    over = seconds - budget.seconds
    late = f", finishing: {over:.0f} s over" if over >= 1.0 else ""
    return f"{format_duration(min(seconds, budget.seconds))} of {budget}{late}"


def format_duration(seconds: float) -> str:
    """Format a duration as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
