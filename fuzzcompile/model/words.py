"""Numbers of things in words."""

from __future__ import annotations


def count_noun(number: int, noun: str) -> str:
    """Return ``number`` and a ``noun`` with a regular plural: "1 case", "2 cases"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
