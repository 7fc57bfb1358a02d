"""The places of a stream that one campaign judges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from fuzzcompile.corpus import PLACES, StreamRun, part_of

# Where a part of a stream that ends begins: by this share of the stream behind the part before it, so that few parts or
# many lie far from each other (the golden ratio).
_SHARE = 0.6180339887498949


def places(part: int, size: int | None) -> Iterable[int]:
    """The places of a part, in order.

    Parts of a stream that ends share its places: each begins elsewhere, and passes over what others have judged.
    """
    if size is None:
        return itertools.count(part * PLACES)
    begin = int(part * _SHARE % 1.0 * size)
    return itertools.chain(range(begin, size), range(begin))


def own_last(past: Sequence[StreamRun], part: int) -> list[StreamRun]:
    """The judged cases of a stream, those of a part last: what was learned last counts most."""
    return sorted(past, key=lambda run: (part_of(run.index) == part, run.index))
