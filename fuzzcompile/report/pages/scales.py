"""Logarithmic axes: how far along one a value lies, and where its labels stand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_TICKS = 7


@dataclass(frozen=True)
class LogScale:
    """An axis from 10 to the power of ``low`` to 10 to the power of ``high``."""

    low: int
    high: int

    @classmethod
    def over(cls, values: Iterable[float | None], *, decades: int = 2) -> LogScale | None:
        """The axis that holds all positive finite values, of at least so many decades; None if there are none."""
        positive = [value for value in values if value is not None and 0 < value < math.inf]
        if not positive:
            return None
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        return cls(min(low, high - decades), high)

    def share(self, value: float | None) -> float | None:
        """How far along, from 0 to 1: 0 for zero, 1 beyond the end and for NaN; None for None."""
        if value is None:
            return None
        if value == 0:
            return 0.0
        if not math.isfinite(value):
            return 1.0
        return min(1.0, max(0.0, (math.log10(value) - self.low) / (self.high - self.low)))

    def percent(self, value: float | None) -> str:
        """The share as CSS writes it; the start of the axis for None."""
        return f"{100 * (self.share(value) or 0):.1f}"

    @property
    def ticks(self) -> list[tuple[float, int]]:
        """Powers of ten to label: the share along the axis, and the exponent."""
        step = max(1, math.ceil((self.high - self.low) / (_MOST_TICKS - 1)))
        powers = range(self.low, self.high + 1, step)
        return [((power - self.low) / (self.high - self.low), power) for power in powers]
