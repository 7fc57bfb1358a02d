"""Further cases for a line that few cases of the pool reach: drawn like those that do, and judged into the pool."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from fuzzcompile.run.pool.worker_pool import WorkerPool
from recalling.sampling import Site
from recalling.survey import Pooled, Survey, Unjudged, drawn

# Candidates of which the most promising is compiled.
_CANDIDATES = 16


class Fresh:
    """Draws cases and has them judged by the compiler as it is; its workers start when the first case is drawn.

    Args:
        survey: the pool that the cases are added to.
        workers: how many cases are judged at a time.
        seed: of the draws.
    """

    def __init__(self, survey: Survey, workers: int, seed: int) -> None:
        self.survey, self.workers, self.seed = survey, workers, seed
        self._lock = threading.Lock()
        self._watching: WorkerPool | None = None
        self._places = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        if self._watching is not None:
            self._watching.kill_workers()

    def reaching(self, site: Site, stop: Callable[[], bool], spent: list[float]) -> Iterator[Pooled]:
        """Cases that reach the line and show no bug of the compiler as it is; those that do not are judged in vain.

        Args:
            site: whose line.
            stop: asked before each draw.
            spent: gets the processor seconds of each case judged.
        """
        while not stop():
            like = [case for case in self.survey.pool if case.clean and site.probe in case.shown.reached]
            case, screen = self._draw(like)
            pooled = self.survey.judged(self._workers(), case, screen)
            spent.append(pooled.shown.seconds)
            if pooled.clean and site.probe in pooled.shown.reached:
                yield pooled

    def _draw(self, like: Sequence[Pooled]) -> tuple[Unjudged, bool]:
        with self._lock:
            place = next(self._places)
        rng = random.Random(f"recall fresh {self.seed} {place}")
        stream = drawn(_apart(self.seed, place))
        known = {pooled.sha256 for pooled in self.survey.pool}
        candidates = [case for case in itertools.islice(stream, _CANDIDATES) if case.sha256 not in known]
        if not candidates:
            return self._draw(like)
        most = max(candidates, key=lambda case: _likeness(case.features, like, self.survey.pool))
        return most, rng.choice(like).screen if like else rng.random() < 0.5

    def _workers(self) -> WorkerPool:
        with self._lock:
            if self._watching is None:
                self._watching = self.survey.watching(self.workers)
            return self._watching


def _apart(seed: int, place: int) -> int:
    """The seed of a stream that is neither the pool's nor that of another place."""
    return 1_000_003 * (seed + 1) + place


def _likeness(features: Sequence[str], like: Sequence[Pooled], pool: Sequence[Pooled]) -> float:
    """How much more often a case's features occur among those that reach the line than among all: a mean logarithm."""
    here, everywhere = (Counter(name for case in cases for name in set(case.features)) for cases in (like, pool))
    ratios = [
        math.log((here[name] + 0.5) / (len(like) + 1)) - math.log((everywhere[name] + 0.5) / (len(pool) + 1))
        for name in set(features)
    ]
    return sum(ratios) / max(1, len(ratios))
