"""The promise that compiled equals eager bit for bit, as far as torch's strict settings go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.contracts.bits import Difference, differences
from fuzzcompile.contracts.execution import SHOWN, Compiles, Execution
from fuzzcompile.contracts.graphs import graph_partings
from fuzzcompile.contracts.local import Local
from fuzzcompile.contracts.parting import Parting, Promise, in_order
from fuzzcompile.execution.observation import Observation
from fuzzcompile.stage_names import CODEGEN
from fuzzcompile.stages.kernels.culprits import kernel_of

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
    local = local_partings(execution, count)
    if any(parting.stage == CODEGEN for parting in local) and not compiles.late:
        local = _refined(local, execution, _finer(compiles, count))
    partings = in_order((*local, *graph_partings(execution.ledger, count, seconds=_SECONDS)))
    return _answer(partings, outputs)


def _answer(partings: Sequence[Parting], outputs: tuple[Difference, ...]) -> Promise:
    broken = next((parting for parting in partings if parting.promised), None)
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
    """The promised partings of kernels in a compile in which the value of every operator is stored."""
    execution = compiles.execute(control=SHOWN)
    partings = local_partings(execution, count) if not execution.first.failure else []
    return [parting for parting in partings if parting.promised and parting.stage == CODEGEN]


def _refined(partings: list[Parting], execution: Execution, finer: list[Parting]) -> list[Parting]:
    """The partings of kernels by their operators, as far as the finer look shows those."""
    graphs = {(parting.graph, parting.direction) for parting in finer}
    kept = [
        parting
        for parting in partings
        if not (parting.promised and parting.stage == CODEGEN and (parting.graph, parting.direction) in graphs)
    ]
    return [*kept, *(replace(parting, kernel=_kernel(execution, parting)) for parting in finer)]


def _kernel(execution: Execution, parting: Parting) -> str | None:
    """The kernel that computes the operator in the compile as it is."""
    for lowered in execution.ledger.lowered:
        if (lowered.frame, lowered.direction) == (parting.graph, parting.direction) and parting.node is not None:
            kernel = kernel_of(lowered, parting.node)
            return kernel.name if kernel is not None else None
    return parting.kernel
