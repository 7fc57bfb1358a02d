"""What lists of findings say of those that they count instead of showing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from fuzzcompile.model.severity import Severity


class Ranked(Protocol):
    """Something with a severity."""

    @property
    def severity(self) -> str | None:
        """A word of `Severity`, or None."""


Line = TypeVar("Line", bound=Ranked)

_COUNTED = {
    Severity.LAYOUT: "of other layout",
    Severity.ACCEPTS_INVALID: "that accept what eager refuses",
}


def divided(lines: Iterable[Line]) -> tuple[list[Line], list[Line]]:
    """Those to show, and those to count in one line, both in their order."""
    shown, counted = list[Line](), list[Line]()
    for line in lines:
        (counted if line.severity in _COUNTED else shown).append(line)
    return shown, counted


def counted_line(counted: Sequence[Ranked], how: str) -> str:
    """``12 of other layout and 7 that accept what eager refuses: HOW``."""
    numbers = Counter(line.severity for line in counted)
    parts = [f"{numbers[kind]} {words}" for kind, words in _COUNTED.items() if numbers[kind]]
    return f"{' and '.join(parts)}: {how}"
