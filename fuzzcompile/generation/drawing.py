"""Weighted draws whose first choice is the simplest, so that shrinking walks towards it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Draw(Protocol):
    """What Hypothesis hands to a composite strategy."""

    def __call__(self, strategy: st.SearchStrategy[Any], /) -> Any:
        """A value of ``strategy``."""


def chance(draw: Draw, percent: int) -> bool:
    """True in ``percent`` of the draws; false is the simpler answer."""
    return bool(draw(st.integers(0, 99)) >= 100 - percent)


def one_of(draw: Draw, choices: Sequence[T]) -> T:
    """Any of ``choices``, the simplest first."""
    at: int = draw(st.integers(0, len(choices) - 1))
    return choices[at]


def weighted(draw: Draw, choices: Sequence[tuple[T, int]]) -> T:
    """Any of the (choice, weight) pairs, in proportion to the weights, the simplest first."""
    at = draw(st.integers(0, sum(weight for _, weight in choices) - 1))
    for choice, weight in choices:
        if at < weight:
            return choice
        at -= weight
    raise ValueError("weights must be positive")
