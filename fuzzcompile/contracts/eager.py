"""The promise that compiled equals eager bit for bit, as far as torch's strict settings go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.contracts.bits import Difference, differences
from fuzzcompile.contracts.execution import SHOWN, Compiles, Execution
from fuzzcompile.contracts.graphs import graph_partings
from fuzzcompile.contracts.local import Local, parting_at
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
        finer = _finer(compiles, SHOWN, count)
        local = _refined(local, execution, finer)
        hidden = next((parting for parting in in_order(local) if parting.promised), None)
        if hidden is not None and hidden.stage == CODEGEN and not any(_same_graph(hidden, each) for each in finer):
            local = [_kept(compiles, execution, each, count) if each is hidden else each for each in local]
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
    """Find the partings at lowerings, kernels and wrappers, over the calls of the first run; each place once."""
    found: dict[tuple[int, str, str, str | None], Parting] = {}
    for look in execution.looks(count):
        for parting in Local(look).partings():
            found.setdefault((parting.graph, parting.direction, parting.stage, parting.node), parting)
    return list(found.values())


def is_broken(compiles: Compiles, eager: Observation, control: Control, count: ReplayCount) -> bool:
    """Return whether a compile changed by ``control`` still breaks the promise."""
    execution = compiles.execute(control=control)
    if execution.first.failure or not differences(eager, execution.first):
        return bool(execution.first.failure)
    return any(parting.promised for parting in local_partings(execution, count))


def _finer(compiles: Compiles, control: Control, count: ReplayCount) -> list[Parting]:
    """The promised partings of kernels in a compile in which the values of more operators are stored."""
    execution = compiles.execute(control=control)
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


def _kept(compiles: Compiles, execution: Execution, hidden: Parting, count: ReplayCount) -> Parting:
    """The operator whose value a kernel does not keep as it is stored, where storing every value hides the difference.

    That is the first operator that has to be stored, with all after it, for the kernel to be right.
    """
    lowered = next(each for each in execution.ledger.lowered if _is_of(each, hidden))
    kernel = lowered.kernel(hidden.kernel)
    names = [name for name in (kernel.nodes if kernel is not None else ()) if name in lowered.labels]
    first, last = 0, len(names) - 1
    while first < last and not compiles.late:
        middle = (first + last + 1) // 2
        stored = Control(realised=tuple(lowered.labels[name] for name in names[middle:]), stored=True)
        if any(_same_graph(hidden, each) for each in _finer(compiles, stored, count)):
            last = middle - 1
        else:
            first = middle
    node = lowered.node(names[first]) if names and first == last else None
    if node is None:
        return hidden
    what = "the kernel goes on with another value than it would store"
    return parting_at(lowered, CODEGEN, node, hidden.difference, what, None, kernel, hidden.position)


def _is_of(lowered: Lowered, parting: Parting) -> bool:
    return (lowered.frame, lowered.direction) == (parting.graph, parting.direction)


def _same_graph(first: Parting, second: Parting) -> bool:
    return (first.graph, first.direction) == (second.graph, second.direction)


def _kernel(execution: Execution, parting: Parting) -> str | None:
    """The kernel that computes the operator in the compile as it is."""
    for lowered in execution.ledger.lowered:
        if _is_of(lowered, parting) and parting.node is not None:
            kernel = kernel_of(lowered, parting.node)
            return kernel.name if kernel is not None else None
    return parting.kernel
