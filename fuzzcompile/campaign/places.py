"""The places of a stream that one campaign judges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from fuzzcompile.corpus import PLACES, StreamRun, part_of

# Each part of a finite stream begins this share of the stream after the previous part, so that few parts or many begin
# far from each other (the golden ratio).
_SHARE = 0.6180339887498949


def places(part: int, size: int | None) -> Iterable[int]:
    """Return the places of a part, in order.

    Parts of a finite stream share its places: each begins elsewhere, and skips the places that others have judged.
    """
    if size is None:
        return itertools.count(part * PLACES)
    begin = int(part * _SHARE % 1.0 * size)
    return itertools.chain(range(begin, size), range(begin))


def own_last(past: Sequence[StreamRun], part: int) -> list[StreamRun]:
    """Sort the judged cases of a stream, those of a part last: the results learned last count most."""
    return sorted(past, key=lambda run: (part_of(run.index) == part, run.index))
