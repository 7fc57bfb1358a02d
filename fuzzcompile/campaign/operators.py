"""Cases from torch's own tables of operators, which a separate process writes one batch ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from fuzzcompile.campaign.budget import Clock
from fuzzcompile.campaign.drawing import Drawn, WithoutRecipes
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.pool import WorkerFailed, WorkerPool, WorkerStartFailed
from fuzzcompile.opinfo import Cell, Operator, Written, ordered
from fuzzcompile.worker.lost import unstartable
from fuzzcompile.worker.tasks import LIST_OPERATORS, WRITE_CELLS

_BATCH = 8
# Writing a case takes some 10 ms; an operator that hangs in eager mode must not hold up the campaign.
_SECONDS = 30.0
_LISTING_SECONDS = 180.0

Write = Callable[[Sequence[Cell]], Future[list[Written]]]


@dataclass
class Operators(WithoutRecipes):
    """A sweep over ``operators`` in the order of a seed; ``write`` submits cells to a worker that makes case files.

    ``only`` are the operators' names if the sweep was narrowed to some; empty for all of them.
    """

    operators: Sequence[Operator]
    seed: int
    write: Write
    only: tuple[str, ...] = ()
    _batches: dict[int, Future[list[Written]]] = field(default_factory=dict)
    _samples: int = 0
    _empty: int = 0
    _left_out: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """``opinfo``, and the names that the sweep was narrowed to."""
        return f"opinfo={','.join(self.only)}" if self.only else "opinfo"

    def of_overload(self, label: str) -> Operators:
        """Return the sweep over an ATen operator such as ``aten.add.Tensor``; the tables know no overloads."""
        bare = label.split(".")[1] if label.count(".") else label
        own = [operator for operator in self.operators if operator.name.rpartition(".")[2] == bare]
        return Operators(own, self.seed, self.write, (bare,))

    @cached_property
    def cells(self) -> Sequence[Cell]:
        """The cells of the stream, in order."""
        return ordered(self.operators, self.seed)

    @property
    def size(self) -> int:
        """The number of places in the stream."""
        return len(self.cells)

    @property
    def account(self) -> Mapping[str, object]:
        """The numbers of operators and places, and of samples left out of the cases written so far, by reason."""
        return {
            "operators": len(self.operators),
            "places": self.size,
            "samples": self._samples,
            "empty_places": self._empty,
            "left_out": dict(self._left_out.most_common()),
        }

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn | None:
        """Return the case for a place in the stream; None where no sample of the table can be spelled and run."""
        if index >= self.size:
            return None
        cell, written = self.cells[index], self._written(index)
        self._left_out.update(written.left_out)
        if written.source is None:
            self._empty += 1
            return None
        self._samples += written.samples
        spec = {"operator": cell.label, "form": cell.form, "dtype": cell.dtype, "layout": cell.layout}
        return Drawn(written.source, "opinfo", cell.features, spec={**spec, "chunk": cell.chunk})

    def _written(self, index: int) -> Written:
        """Return the case written for a place, and start writing the next batch."""
        batch, place = divmod(index, _BATCH)
        for past in [number for number in self._batches if number < batch]:
            del self._batches[past]
        for number in (batch, batch + 1):
            if number not in self._batches:
                self._batches[number] = self.write(self.cells[number * _BATCH : (number + 1) * _BATCH])
        try:
            return self._batches[batch].result()[place]
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerFailed:
            return self._alone(self.cells[index])

    def _alone(self, cell: Cell) -> Written:
        """Write a cell alone whose batch cost a worker."""
        try:
            return self.write([cell]).result()[0]
        except WorkerStartFailed as error:
            raise unstartable(error) from error
        except WorkerFailed:
            return Written(left_out={"groups of samples over which a worker is lost in eager mode": 1})


@contextmanager
def reading_tables(only: Sequence[str] = ()) -> Iterator[Callable[[int, Clock], Operators]]:
    """Start a process that reads torch's tables; importing them changes torch, so nothing may be judged there.

    Args:
        only: names of operators; all by default.

    Returns:
        A function of seed and budget that returns the sweep over these operators. It raises EnvironmentUnfit if the
        tables cannot be imported or the budget ends first, and UsageError for a name that no operator has.
    """
    with WorkerPool(1, time_limit=_SECONDS, environment={"OMP_NUM_THREADS": "1"}) as pool:
        listed = pool.schedule(
            LIST_OPERATORS, (tuple(only),), label="list torch's operators", time_limit=_LISTING_SECONDS
        )

        def sweep(seed: int, budget: Clock) -> Operators:
            try:
                operators = listed.result(budget.timeout)
            except NotInTime as error:
                raise EnvironmentUnfit(
                    "Torch's operators were not listed when the budget was over. Give more."
                ) from error
            except WorkerStartFailed as error:
                raise unstartable(error) from error
            except WorkerFailed as error:
                raise EnvironmentUnfit(f"The process that lists torch's operators {error}.") from error
            return Operators(operators, seed, lambda cells: pool.submit(WRITE_CELLS, cells), tuple(only))

        try:
            yield sweep
        finally:
            pool.kill_workers()
