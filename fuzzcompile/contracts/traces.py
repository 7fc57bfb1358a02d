"""Two executions of one program held against each other: the first kernel and operator whose values differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.kernels.evaluated import nodes_by_buffer
from fuzzcompile.compiler.kernels.lowered import GraphCall, Kernel, Lowered
from fuzzcompile.contracts.bits import Difference, difference
from fuzzcompile.contracts.execution import OutOfTime
from fuzzcompile.contracts.local import parting_at
from fuzzcompile.contracts.parting import Parting
from fuzzcompile.stage_names import CODEGEN, LOWERING, RUNTIME

# Why nothing is promised of a kernel and one of its buffers, given the buffers that were the same before it, and how
# the values differ; None where equal bits are.
Why = Callable[[Kernel, str, Collection[str], Difference], str | None]
# The part of the first value that the second should equal; None where they cannot be compared.
Project = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True)
class Traced:
    """One call of a lowered graph."""

    lowered: Lowered
    call: GraphCall

    def values(self) -> Iterator[tuple[str, Kernel, str, torch.Tensor]]:
        """Yield the values that kernels wrote, in order: node, kernel, buffer and value.

        Where no node is known, as for a part of a reduction, the last operator of the kernel stands for it.
        """
        nodes = nodes_by_buffer(self.lowered)
        for (number, buffer), value in self.call.written.items():
            kernel = self.lowered.kernels[number]
            yield nodes.get(buffer) or next(reversed(kernel.nodes), ""), kernel, buffer, value

    def by_operator(self) -> dict[str, torch.Tensor]:
        """Map operator labels, which mean the same in another compile, to the values that kernels wrote."""
        nodes = nodes_by_buffer(self.lowered)
        known = {buffer: self.lowered.labels.get(nodes.get(buffer, "")) for _, buffer in self.call.written}
        return {label: value for (_, name), value in self.call.written.items() if (label := known[name]) is not None}


def same_graph(first: Lowered, second: Lowered) -> bool:
    """Return whether two lowered graphs, of two compiles, are the same graph."""
    return (first.frame, first.direction) == (second.frame, second.direction)


def whole(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    """All of the first value, if the second has its form."""
    return first if first.shape == second.shape else None


def first_parting(first: Traced, second: Traced, why: Why, project: Project = whole) -> Parting | None:
    """The first operator whose values differ between two executions; None if none that both stored does.

    Args:
        first: one call of the graph, from which the names are taken.
        second: a call of the same graph, of this compile or another one.
        why: why nothing is promised of a difference.
        project: which part of the first value the second is.
    """
    compared: set[str] = set()
    partner = _partner(first, second)
    for name, kernel, buffer, value in first.values():
        seen = partner(buffer)
        part = project(value, seen) if seen is not None else None
        if seen is None or part is None:
            continue
        compared.add(buffer)
        apart = difference(buffer, part, seen)
        if apart is not None and not apart.only_payloads:
            return _at(first.lowered, name, kernel, apart, why(kernel, buffer, compared - {buffer}, apart))
    return None


def _partner(first: Traced, second: Traced) -> Callable[[str], torch.Tensor | None]:
    """Finds the value of the second execution that a buffer of the first is to be compared with."""
    if first.lowered is second.lowered:
        written = {buffer: value for (_, buffer), value in second.call.written.items()}
        return written.get
    there, nodes = second.by_operator(), nodes_by_buffer(first.lowered)
    return lambda buffer: there.get(first.lowered.labels.get(nodes.get(buffer, ""), ""))


def _at(lowered: Lowered, name: str, kernel: Kernel, apart: Difference, why: str | None) -> Parting | None:
    node = lowered.node(lowered.producer(name))
    if node is None:
        return None
    stage = LOWERING if kernel.extern else CODEGEN
    position = next(place for place, each in enumerate(lowered.snapshot.graph.nodes) if each is node)
    return parting_at(lowered, stage, node, apart, "the kernel's values differ", why, kernel, position)


def singled_out(parting: Parting, finer: Callable[[], list[Parting]]) -> Parting:
    """The operator of a kernel that makes the difference.

    Args:
        parting: what the compile shows as it is: the kernel, and an operator whose value it stores.
        finer: the partings of a compile in which the kernels store the value of each operator.
    """
    if parting.stage != CODEGEN or parting.kernel is None:
        return parting
    try:
        partings = finer()
    except OutOfTime:
        return parting
    same = [each for each in partings if (each.graph, each.direction) == (parting.graph, parting.direction)]
    named = next((each for each in same if each.operator is not None), None)
    if named is None or named.position > parting.position:
        return parting
    return replace(named, kernel=parting.kernel)


def behind_kernels(first: Traced, second: Traced, project: Project = whole) -> Parting | None:
    """The parting at a graph whose kernels give the same bits and whose outputs do not; None if those are the same."""
    for number, (value, seen) in enumerate(zip(first.call.outputs or (), second.call.outputs or (), strict=False)):
        if not isinstance(value, torch.Tensor) or not isinstance(seen, torch.Tensor):
            continue
        part = project(value, seen)
        apart = difference(f"output {number}", part, seen) if part is not None else None
        if apart is not None and not apart.only_payloads:
            lowered = first.lowered
            detail = f"output {number} of the graph, behind its kernels: {apart}"
            return Parting(lowered.frame, lowered.direction, RUNTIME, None, apart, detail)
    return None
