"""The promise that bits are the same from run to run: one compiled program twice, and two compiles of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.compiler.kernels.lowered import GraphCall, Kernel, Lowered
from fuzzcompile.contracts.bits import Difference, differences
from fuzzcompile.contracts.execution import SHOWN, Compiles, Execution
from fuzzcompile.contracts.parting import Parting, Promise, in_order
from fuzzcompile.contracts.traces import Traced, behind_kernels, first_parting, same_graph, singled_out
from fuzzcompile.execution.observation import Observation

NAME = "run_to_run"
_RUNS = "two runs of one compiled program"
_COMPILES = "two compiles of the program"


def judge_repeated(compiles: Compiles, execution: Execution) -> Promise:
    """Run a compiled program twice, and compile it twice.

    Args:
        compiles: makes further compiles.
        execution: the compiled program, run twice.
    """
    if differences(*compiles.run_eagerly(runs=2)):
        return Promise(NAME, None, "eager itself gives other bits when the same program runs again")
    outputs = significant(execution.runs)
    if outputs:
        return _broken(_RUNS, outputs, _between_runs(execution), lambda: _between_runs(_shown_twice(compiles)))
    second = compiles.execute()
    outputs = significant((execution.first, second.first))
    if outputs:
        partings = _between_compiles(execution, second)
        return _broken(_COMPILES, outputs, partings, lambda: _between_compiles(*_two_shown(compiles)))
    return Promise(NAME, True, f"{_RUNS} give the same bits, and so do {_COMPILES}")


def repeats_differ(compiles: Compiles, control: Control) -> bool:
    """Return whether a program compiled under ``control`` differs between two runs or two compiles."""
    execution = compiles.execute(control=control, runs=2)
    if any(run.failure for run in execution.runs) or significant(execution.runs):
        return True
    return bool(significant((execution.first, compiles.execute(control=control).first)))


def significant(runs: Sequence[Observation]) -> list[Difference]:
    """Compare the values of the first two runs, and drop differences in payloads of NaN alone."""
    return [apart for apart in differences(*runs[:2]) if not apart.only_payloads]


def _broken(
    between: str, outputs: list[Difference], partings: list[Parting], finer: Callable[[], list[Parting]]
) -> Promise:
    if not partings:
        why = f"{between} differ, and no graph or kernel shows where"
        return Promise(NAME, False, why, (), tuple(outputs), unsure=True)
    first = singled_out(partings[0], finer)
    return Promise(NAME, False, f"{between} differ: {first}: {first.detail}", (first, *partings[1:]), tuple(outputs))


def _shown_twice(compiles: Compiles) -> Execution:
    return compiles.execute(control=SHOWN, runs=2)


def _two_shown(compiles: Compiles) -> tuple[Execution, Execution]:
    return compiles.execute(control=SHOWN), compiles.execute(control=SHOWN)


def _between_runs(execution: Execution) -> list[Parting]:
    """The first parting of each graph between the first run and the second."""
    found: list[Parting] = []
    for lowered, before, after in zip(execution.ledger.lowered, *execution.calls[:2], strict=False):
        pairs = zip(lowered.calls[:before], lowered.calls[before:after], strict=False)
        found += _first_of(lowered, lowered, pairs)
    return in_order(found)


def _between_compiles(first: Execution, second: Execution) -> list[Parting]:
    """The first parting of each graph between two compiles."""
    found: list[Parting] = []
    for lowered, made in zip(first.ledger.lowered, first.calls[0], strict=False):
        partner = next((each for each in second.ledger.lowered if same_graph(lowered, each)), None)
        if partner is not None:
            found += _first_of(lowered, partner, zip(lowered.calls[:made], partner.calls, strict=False))
    return in_order(found)


def _first_of(first: Lowered, second: Lowered, calls: Iterable[tuple[GraphCall, GraphCall]]) -> list[Parting]:
    for before, after in calls:
        pair = Traced(first, before), Traced(second, after)
        parting = first_parting(*pair, _promised) or behind_kernels(*pair)
        if parting is not None:
            return [parting]
    return []


def _promised(kernel: Kernel, buffer: str, compared: Collection[str], apart: Difference) -> None:
    """Return None: torch promises that every kernel repeats itself."""
