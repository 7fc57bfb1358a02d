"""How long a campaign may go on: a time or a number of cases."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuzzcompile.errors import UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """Exactly one of ``seconds`` and ``cases`` is set."""

    seconds: float | None = None
    cases: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``90s``, ``10m``, ``1h`` (fractions allowed) or ``200c``.

        Raises:
            UsageError: anything else, or nothing left of it.
        """
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhc])", text.strip().lower())
        if match is None or float(match[1]) == 0 or (match[2] == "c" and "." in match[1]):
            raise UsageError(
                f"{text!r} is no budget: write a time such as 90s, 10m or 1h, or a number of cases such as 200c."
            )
        if match[2] == "c":
            return cls(cases=int(match[1]))
        return cls(seconds=float(match[1]) * _UNITS[match[2]])

    def __str__(self) -> str:
        if self.cases is not None:
            return f"{self.cases} cases"
        return clock(self.seconds or 0.0)


def seconds_of(text: str, option: str) -> float:
    """The seconds of a budget that must be a time.

    Raises:
        UsageError: it is none; the message names ``option``, the one that gave it.
    """
    seconds = Budget.parse(text).seconds
    if seconds is None:
        raise UsageError(f"{option} takes a time such as 90s, 30m or 1h, not {text!r}.")
    return seconds


def clock(seconds: float) -> str:
    """A duration as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
