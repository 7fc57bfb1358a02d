"""Weighted draws whose first choice is the simplest, so that shrinking walks towards it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


@dataclass(frozen=True)
class Pen:
    """Draws choices. ``weights`` steer by name: 100 leaves a weight as it was registered, 0 rules a name out."""

    draw: st.DrawFn
    weights: Mapping[str, int]

    def number(self, most: int) -> int:
        """Any of 0 … ``most``, the smallest first."""
        return self.draw(_up_to(most))

    def chance(self, percent: int, name: str | None = None) -> bool:
        """True in ``percent`` of the draws, steered by ``name``; false is the simpler answer."""
        if name is not None and name in self.weights:
            percent = min(95, percent * self.weights[name] // 100)
        return self.number(99) >= 100 - percent

    def one_of(self, choices: Sequence[T]) -> T:
        """Any of ``choices``, the simplest first."""
        return choices[self.number(len(choices) - 1)]

    def draw_weighted(self, choices: Sequence[tuple[T, int]]) -> T:
        """Any of the (choice, weight) pairs, in proportion to the weights, the simplest first.

        Raises:
            ValueError: no weight is positive.
        """
        at = self.number(sum(weight for _, weight in choices) - 1)
        for choice, weight in choices:
            if at < weight:
                return choice
            at -= weight
        raise ValueError("weights must be positive")

    def draw_named(self, choices: Sequence[tuple[T, int]]) -> T:
        """As `weighted`, with steered weights for choices that are names; the first is drawn if all are ruled out."""
        steered = [(choice, weight * self._find_factor(choice)) for choice, weight in choices]
        if not any(weight for _, weight in steered):
            steered[0] = (steered[0][0], 1)
        return self.draw_weighted(steered)

    def _find_factor(self, choice: object) -> int:
        return self.weights.get(choice, 100) if isinstance(choice, str) else 100


@cache
def _up_to(most: int) -> st.SearchStrategy[int]:
    """Cached here, because a look-up in Hypothesis's own cache costs more than the draw."""
    return st.integers(0, most)
