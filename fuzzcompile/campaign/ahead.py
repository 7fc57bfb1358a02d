"""Draws cases ahead of the campaign, in processes of their own, where drawing would hold its many workers up.

A place in the stream takes 10 ms to fill (measured), nearly all of it to draw its candidates, and those depend on the
seed and the place alone. What steering makes of them stays in the campaign's own process.
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
    """The first candidates of a source for each of these places."""
    return [[source.at(seed, place, candidate) for candidate in range(number)] for place in places]


@dataclass
class Ahead:
    """A source whose candidates are drawn ahead by processes of their own, once there are many workers.

    What is asked out of turn, it draws by itself.

    Attributes:
        source: what is drawn from; it can be pickled.
        number: candidates for a place that are drawn ahead.
        workers: says how many workers there are now.
    """

    source: Source
    number: int
    workers: Callable[[], int]
    _pool: WorkerPool | None = None
    _processes: int = 0
    _chunks: dict[tuple[int, int], Future[list[list[Drawn | None]]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """That of the source: the stream is the same."""
        return self.source.name

    @property
    def profile(self) -> Mapping[str, object] | None:
        """That of the source."""
        return self.source.profile

    @property
    def size(self) -> int | None:
        """That of the source."""
        return self.source.size

    @property
    def account(self) -> Mapping[str, object]:
        """That of the source."""
        return self.source.account

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn | None:
        """The ``candidate``-th case for a place in the stream, drawn before if the places are asked for in turn."""
        if candidate >= self.number or not self._has_processes():
            return self.source.at(seed, index, candidate)
        chunk = index // _CHUNK
        try:
            self._order(seed, chunk)
            return self._chunks[seed, chunk].result()[index % _CHUNK][candidate]
        except WorkerFailed:  # a process was killed, or none can be started: nothing is lost but time
            return self.source.at(seed, index, candidate)

    def of(self, choices: bytes) -> Drawn | None:
        """The source's case of a recipe."""
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
        """Have the chunk and those behind it drawn; forget those before it."""
        assert self._pool is not None
        for ahead in range(chunk, chunk + 1 + _AHEAD * self._processes):
            if (seed, ahead) not in self._chunks:
                places = range(ahead * _CHUNK, (ahead + 1) * _CHUNK)
                self._chunks[seed, ahead] = self._pool.submit(_DRAW, self.source, seed, places, self.number)
        for past in [key for key in self._chunks if key[1] < chunk - 1]:
            self._chunks.pop(past).cancel()


@contextmanager
def drawing_ahead(source: Source, number: int, workers: Callable[[], int]) -> Iterator[Source]:
    """The source, drawn ahead while there are many workers (`Ahead`); its processes end with the block.

    A source whose stream ends is left as it is: its places may be many and cheap, or none.
    """
    if source.size is not None:
        yield source
        return
    ahead = Ahead(source, number, workers)
    try:
        yield ahead
    finally:
        ahead.close()
