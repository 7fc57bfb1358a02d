"""Sizes and numbers that depend on values: symbols without a value at compile time, or breaks of the graph."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.detour_registry import detour
from fuzzcompile.generation.spec import Choices


@detour(4, reads_values=True)
def sizes_of_values(pen: Pen) -> Choices:
    """Rows picked, cut, split or repeated as their values say, or counted and read as a Python number.

    No guard can be made of such a size: what is assumed of it (not 0, not 1, no more than another, divisible) must hold
    for all of them, with ``torch._check`` or without.
    """
    return {
        "by": pen.one_of(("masked", "nonzero", "sliced", "split", "repeated", "counted", "made", "unique")),
        "checked": pen.chance(60),
        "few": pen.chance(30),
    }
