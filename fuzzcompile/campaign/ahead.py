"""Draws cases ahead of the campaign in separate processes, where one drawing process could not feed all workers.

Filling a place in the stream takes 10 ms (measured), nearly all of it for drawing its candidates, which depend on the
seed and the place alone. Steering, which chooses between them, stays in the campaign's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from fuzzcompile.campaign.drawing import Drawn, Source
from fuzzcompile.execution.named import Named
from fuzzcompile.execution.pool import WorkerFailed, WorkerPool
from fuzzcompile.worker.pool import available_cpus

# With fewer workers, the campaign's own process draws fast enough.
_MANY_WORKERS = 32
_MOST_PROCESSES = 8
# Places that a process draws at once, and how many such chunks are drawn ahead for each process.
_CHUNK, _AHEAD = 16, 4

_DRAW = Named("fuzzcompile.campaign.ahead:candidates")


def candidates(source: Source, seed: int, places: Sequence[int], number: int) -> list[list[Drawn | None]]:
    """Return the first candidates of a source for each of these places."""
    return [[source.at(seed, place, candidate) for candidate in range(number)] for place in places]


@dataclass
class Ahead:
    """A source whose candidates are drawn ahead by separate processes, once there are many workers.

    A candidate that is requested out of order is drawn in the calling process.

    Attributes:
        source: the source to draw from; it can be pickled.
        number: how many candidates of a place are drawn ahead.
        workers: returns the current number of workers.
    """

    source: Source
    number: int
    workers: Callable[[], int]
    _pool: WorkerPool | None = None
    _processes: int = 0
    _chunks: dict[tuple[int, int], Future[list[list[Drawn | None]]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the source: the stream is the same."""
        return self.source.name

    @property
    def profile(self) -> Mapping[str, object] | None:
        """The profile of the source."""
        return self.source.profile

    @property
    def size(self) -> int | None:
        """The size of the source."""
        return self.source.size

    @property
    def account(self) -> Mapping[str, object]:
        """The account of the source."""
        return self.source.account

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn | None:
        """Return the ``candidate``-th case for a place in the stream; it is ready if places are requested in order."""
        if candidate >= self.number or not self._has_processes():
            return self.source.at(seed, index, candidate)
        chunk = index // _CHUNK
        try:
            self._order(seed, chunk)
            return self._chunks[seed, chunk].result()[index % _CHUNK][candidate]
        except WorkerFailed:  # a process was killed, or none can be started: nothing is lost but time
            return self.source.at(seed, index, candidate)

    def of(self, choices: bytes) -> Drawn | None:
        """Return the source's case for a recipe."""
        return self.source.of(choices)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.kill_workers()

    def _has_processes(self) -> bool:
        if self._pool is None and self.workers() >= _MANY_WORKERS:
            self._processes = min(_MOST_PROCESSES, available_cpus())
            self._pool = WorkerPool(self._processes)
        return self._pool is not None

    def _order(self, seed: int, chunk: int) -> None:
        """Start drawing this chunk and the following ones; forget earlier chunks."""
        assert self._pool is not None
        for ahead in range(chunk, chunk + 1 + _AHEAD * self._processes):
            if (seed, ahead) not in self._chunks:
                places = range(ahead * _CHUNK, (ahead + 1) * _CHUNK)
                self._chunks[seed, ahead] = self._pool.submit(_DRAW, self.source, seed, places, self.number)
        for past in [key for key in self._chunks if key[1] < chunk - 1]:
            self._chunks.pop(past).cancel()


@contextmanager
def drawing_ahead(source: Source, number: int, workers: Callable[[], int]) -> Iterator[Source]:
    """Yield the source, drawn ahead while there are many workers (`Ahead`); its processes end with the block.

    A source with a finite stream is yielded unchanged: its places may be many and cheap, or none.
    """
    if source.size is not None:
        yield source
        return
    ahead = Ahead(source, number, workers)
    try:
        yield ahead
    finally:
        ahead.close()
