"""Time spent in functions, without that of the watched functions that they call."""

from __future__ import annotations

import functools
import resource
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field


def now() -> tuple[float, float]:
    """Wall and processor seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), usage.ru_utime + usage.ru_stime


@dataclass
class NestedClock:
    """Wall and processor seconds by what they were spent for and in which phase; ``outside`` watched functions too."""

    outside: tuple[str, str]
    spent: defaultdict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    _running: list[tuple[str, str]] = field(default_factory=list)
    _since: tuple[float, float] = field(default_factory=now)

    def turn(self) -> None:
        """Give the time since the last turn to what ran."""
        last, self._since = self._since, now()
        spent = self.spent[self._running[-1] if self._running else self.outside]
        spent[:] = [total + after - before for total, after, before in zip(spent, self._since, last, strict=True)]

    def watch(self, owner: object, name: str, *, purpose: str | None = None, phase: str | None = None) -> None:
        """Time the calls of a function; what is not named is that of the function that calls it."""
        original: Callable[..., object] = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: object, **kwargs: object) -> object:
            self.turn()
            around = self._running[-1] if self._running else self.outside
            self._running.append((purpose or around[0], phase or around[1]))
            try:
                return original(*args, **kwargs)
            finally:
                self.turn()
                self._running.pop()

        setattr(owner, name, timed)
