"""The promise that compiled equals eager bit for bit, as far as torch's strict settings go."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.contracts.bits import Difference, differences
from fuzzcompile.contracts.execution import SHOWN, Compiles, Execution
from fuzzcompile.contracts.graphs import graph_partings
from fuzzcompile.contracts.local import Local
from fuzzcompile.contracts.parting import Parting, Promise, in_order
from fuzzcompile.contracts.traces import singled_out
from fuzzcompile.execution.observation import Observation
from fuzzcompile.stage_names import CODEGEN

NAME = "eager"
_SECONDS = 15.0


def judge_eager(
    compiles: Compiles, eager: Observation, again: Observation, execution: Execution, count: ReplayCount
) -> Promise:
    """Hold the compiled program against eager.

    Args:
        compiles: makes further compiles.
        eager: the eager run.
        again: another eager run, from the same state.
        execution: the compiled program.
        count: counts the replays.
    """
    outputs = tuple(differences(eager, execution.first))
    if not outputs:
        return Promise(NAME, True, "every output has the bits of eager's")
    if differences(eager, again):
        return Promise(NAME, None, "eager itself gives other bits in its second run", outputs=outputs)
    if all(output.only_payloads for output in outputs):
        return Promise(NAME, None, "nothing but payloads of NaN differs, which IEEE 754 leaves open", outputs=outputs)
    partings = in_order((*local_partings(execution, count), *graph_partings(execution.ledger, count, seconds=_SECONDS)))
    broken = next((parting for parting in partings if parting.promised), None)
    if broken is not None and broken.stage == CODEGEN:
        named = singled_out(broken, lambda: _finer(compiles, count))
        partings = [named if parting is broken else parting for parting in partings]
        broken = named
    return _answer(broken, partings, outputs)


def _answer(broken: Parting | None, partings: Sequence[Parting], outputs: tuple[Difference, ...]) -> Promise:
    if broken is not None:
        why = f"bits part although promised: {broken}: {broken.detail}"
        return Promise(NAME, False, why, tuple(partings), outputs)
    if partings:
        first = partings[0]
        why = f"bits part where nothing is promised: {first}: {first.unpromised}"
        return Promise(NAME, None, why, tuple(partings), outputs)
    why = "bits part, and it could not be seen where"
    return Promise(NAME, None, why, outputs=outputs, unsure=True)


def local_partings(execution: Execution, count: ReplayCount) -> list[Parting]:
    """Where lowerings, kernels and wrappers part, over the calls of the first run; each place once."""
    found: dict[tuple[int, str, str, str | None], Parting] = {}
    for look in execution.looks(count):
        for parting in Local(look).partings():
            found.setdefault((parting.graph, parting.direction, parting.stage, parting.node), parting)
    return list(found.values())


def is_broken(compiles: Compiles, eager: Observation, control: Control, count: ReplayCount) -> bool:
    """Whether a compile changed by ``control`` still breaks the promise."""
    execution = compiles.execute(control=control)
    if execution.first.failure or not differences(eager, execution.first):
        return bool(execution.first.failure)
    return any(parting.promised for parting in local_partings(execution, count))


def _finer(compiles: Compiles, count: ReplayCount) -> list[Parting]:
    """The promised partings of a compile in which every operator's value is stored."""
    execution = compiles.execute(control=SHOWN)
    partings = in_order(local_partings(execution, count)) if not execution.first.failure else []
    return [parting for parting in partings if parting.promised]
