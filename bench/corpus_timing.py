"""What a call takes: on the clock, and of the processor."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

REPEATS = 5


def show(what: str, limit: float | None, took: Took) -> None:
    """One line: what it took, and whether that is within the limit."""
    slow = limit is not None and took.clock > limit
    within = "" if limit is None else f"  (limit {limit * 1e3:.0f} ms{': TOO SLOW' if slow else ''})"
    print(f"  {what:52} {took.clock * 1e3:9.1f} ms, processor {took.processor * 1e3:9.1f} ms{within}")


@dataclass(frozen=True)
class Took:
    """Seconds on the clock, and of the processor, child processes included."""

    clock: float
    processor: float

    def __sub__(self, other: Took) -> Took:
        return Took(self.clock - other.clock, self.processor - other.processor)

    def shared(self, number: int) -> Took:
        """What each of so many took."""
        return Took(self.clock / number, self.processor / number)


def middle(taken: Iterable[Took]) -> Took:
    """The medians."""
    rows = list(taken)
    return Took(statistics.median(row.clock for row in rows), statistics.median(row.processor for row in rows))


def timed(call: Callable[[], object]) -> Took:
    """The median of some calls."""
    return middle(took(call) for _ in range(REPEATS))


def took(call: Callable[[], object]) -> Took:
    """What one call takes."""
    used, begun = processor(), time.perf_counter()
    call()
    return Took(time.perf_counter() - begun, processor() - used)


def processor() -> float:
    """Seconds of the processor that this process and its children have used."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)
