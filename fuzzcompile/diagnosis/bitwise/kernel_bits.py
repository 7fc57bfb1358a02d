"""Partings in lowered graphs: of one execution from ATen, and of two executions from each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch import fx

from fuzzcompile.compiler.kernels.ir_evaluation import (
    AppliedOperator,
    ExecutionEvaluation,
    StoredBuffer,
    compare_operators,
    map_buffers_to_nodes,
)
from fuzzcompile.compiler.kernels.kernel_loops import find_loop_nodes, list_loop_operators
from fuzzcompile.compiler.kernels.lowering_control import find_lowering_source, parse_operator
from fuzzcompile.compiler.watch.ledger import GraphCall, Kernel, LoweredGraph, Unseen, UnseenLog, format_reason
from fuzzcompile.diagnosis.bitwise.bit_difference import (
    BitDifference,
    Parting,
    compare_bits,
    is_exact,
    why_open_bits,
    why_open_cast,
    why_open_code,
)
from fuzzcompile.diagnosis.bitwise.execution import BitwiseOutOfTime
from fuzzcompile.diagnosis.kernels.code_generators import find_generator
from fuzzcompile.diagnosis.kernels.kernel_culprits import find_kernel, find_site
from fuzzcompile.diagnosis.kernels.kernel_suspects import WatchedGraph
from fuzzcompile.model.stages import CODEGEN, LOWERING, RUNTIME

_LOOPS = "a loop that the lowering wrote"


class CallPartings:
    """The partings in one call of one lowered graph.

    Args:
        look: the graph with the inputs of the call.
    """

    def __init__(self, look: WatchedGraph) -> None:
        self.lowered, self._look = look.lowered, look
        self._places = {node.name: place for place, node in enumerate(self.lowered.snapshot.graph.nodes)}
        inexact = {
            buffer: kernel.extern or not is_exact(list_loop_operators(kernel, buffer))
            for kernel in self.lowered.kernels
            for buffer in kernel.writes
        }
        self._followed = ExecutionEvaluation(self.lowered, look.inputs or (), look.native, look.call, inexact)

    def find_partings(self) -> list[Parting]:
        """Find the partings of lowerings, kernels and the wrapper from the right values, in graph order."""
        found = list(self._compare_lowerings())
        with contextlib.suppress(*_FAILS):
            self._followed.finish()
        found += self._compare_kernels()
        found += self._compare_outputs()
        return sorted(found, key=lambda parting: parting.position)

    # -- lowerings ------------------------------------------------------------------------------

    def _compare_lowerings(self) -> Iterator[Parting]:
        try:
            applied = list(compare_operators(self._followed, self._look.inputs or ()))
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # an operator that does not run on these values leaves the rest uncompared
            missed = Unseen("operators of a graph", format_reason(error), (LOWERING, CODEGEN), "places where bits part")
            UnseenLog().note(missed)
            return
        for each in applied:
            parting = self._compare_lowering(each)
            if parting is not None:
                yield parting

    def _compare_lowering(self, applied: AppliedOperator) -> Parting | None:
        aten, lowered, node = applied.aten, applied.lowered, applied.node
        rounded = lowered.to(aten.dtype)
        if lowered.is_floating_point() and aten.is_floating_point():
            left = compare_bits(node.name, rounded.to(lowered.dtype), lowered)
            if left is not None and not left.only_payloads:
                if applied.reads_unrounded and why_open_cast(node) is not None:
                    return None
                what = f"its result is not rounded to {str(aten.dtype).removeprefix('torch.')}"
                return self._make_parting(LOWERING, node, left, what, why_open_cast(node))
        if applied.reads_unrounded:
            return None
        apart = compare_bits(node.name, aten, rounded)
        if apart is None:
            return None
        return self._make_parting(LOWERING, node, apart, "not what ATen gives", why_open_bits(node, aten, apart))

    # -- kernels --------------------------------------------------------------------------------

    def _compare_kernels(self) -> Iterator[Parting]:
        for stored in self._followed.stored.values():
            parting = self._compare_kernel(stored)
            if parting is not None:
                yield parting

    def _compare_kernel(self, stored: StoredBuffer) -> Parting | None:
        if stored.meant is None or stored.meant.shape != stored.written.shape:
            return None
        apart = compare_bits(stored.buffer, stored.meant, stored.written)
        if apart is None:
            return None
        kernel = self.lowered.kernels[stored.kernel]
        operators = list_loop_operators(kernel, stored.buffer)
        names = find_loop_nodes(kernel, stored.buffer)
        nodes = [node for node in self.lowered.snapshot.graph.nodes if node.name in names]
        why = why_open_code(operators, nodes, apart, stored.written.dtype, reads_unknown=stored.reads_unknown)
        name = stored.node or (kernel.nodes[-1] if kernel.nodes else None)
        node = self.lowered.find_node(self.lowered.find_producer(name)) if name is not None else None
        if node is None:
            return None
        return self._make_parting(CODEGEN, node, apart, f"the kernel writes something else than {_LOOPS}", why, kernel)

    # -- outputs --------------------------------------------------------------------------------

    def _compare_outputs(self) -> Iterator[Parting]:
        """Outputs that are not what the kernels wrote: the wrapper, or what calls it."""
        for node, value in zip(self.lowered.snapshot.results, self._look.call.outputs or (), strict=False):
            stored = self._followed.find_stored(node.name) if isinstance(node, fx.Node) else None
            if stored is None or not isinstance(value, torch.Tensor) or stored.written.shape != value.shape:
                continue
            apart = compare_bits(node.name, stored.written, value.cpu())
            if apart is not None and not self._is_overwritten(stored):
                what = f"output {node.name} is not what the kernel wrote: {apart}"
                place = self._places.get(node.name, 0)
                yield Parting(self.lowered.frame, self.lowered.direction, RUNTIME, None, apart, what, position=place)

    def _is_overwritten(self, stored: StoredBuffer) -> bool:
        """Return whether a later kernel writes into the same buffer."""
        renamed = getattr(self.lowered.scheduler, "mutation_real_name", {})
        later = (name for kernel in self.lowered.kernels[stored.kernel + 1 :] for name in kernel.writes)
        return any(renamed.get(name, name) == stored.buffer for name in later)

    # -- what is the same of all ----------------------------------------------------------------

    def _make_parting(
        self, stage: str, node: fx.Node, apart: BitDifference, what: str, why: str | None, kernel: Kernel | None = None
    ) -> Parting:
        return make_parting(self.lowered, stage, node, apart, what, why, kernel, self._places.get(node.name, 0))


def make_parting(
    lowered: LoweredGraph,
    stage: str,
    node: fx.Node,
    apart: BitDifference,
    what: str,
    why: str | None,
    kernel: Kernel | None = None,
    position: int = 0,
) -> Parting:
    """A parting at a node of a lowered graph; its kernel is the first that computes the node, if none is given."""
    node = lowered.find_node(lowered.find_producer(node.name)) or node  # of several results, the operator
    kernel = kernel or find_kernel(lowered, node.name)
    label = lowered.labels.get(node.name)
    if stage == CODEGEN and kernel is not None and not kernel.extern:
        code = find_generator(lowered, kernel.name).find_fusion_code()
        source, line = code.source, code.line
    else:
        source, line = find_lowering_source(node.target)
    return Parting(
        lowered.frame,
        lowered.direction,
        stage,
        parse_operator(label) if label else None,
        apart,
        f"{what}: {apart}",
        node.name,
        kernel.name if kernel is not None else None,
        find_site(lowered, node.name),
        source,
        line,
        why,
        position,
    )


_FAILS = (AttributeError, RuntimeError, TypeError, KeyError, ValueError)


# Two executions of one program held against each other: the first kernel and operator whose values differ.

# Why nothing is promised of a kernel and one of its buffers, given the buffers that were the same before it, and how
# the values differ; None where equal bits are.
Why = Callable[[Kernel, str, Collection[str], BitDifference], str | None]
# The part of the first value that the second should equal; None where they cannot be compared.
Project = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True)
class TracedCall:
    """One call of a lowered graph."""

    lowered: LoweredGraph
    call: GraphCall

    def values(self) -> Iterator[tuple[str, Kernel, str, torch.Tensor]]:
        """Yield the values that kernels wrote, in order: node, kernel, buffer and value.

        Where no node is known, as for a part of a reduction, the last operator of the kernel stands for it.
        """
        nodes = map_buffers_to_nodes(self.lowered)
        for (number, buffer), value in self.call.written.items():
            kernel = self.lowered.kernels[number]
            yield nodes.get(buffer) or next(reversed(kernel.nodes), ""), kernel, buffer, value

    def map_by_operator(self) -> dict[str, torch.Tensor]:
        """Map operator labels, which mean the same in another compile, to the values that kernels wrote."""
        nodes = map_buffers_to_nodes(self.lowered)
        known = {buffer: self.lowered.labels.get(nodes.get(buffer, "")) for _, buffer in self.call.written}
        return {label: value for (_, name), value in self.call.written.items() if (label := known[name]) is not None}


def is_same_graph(first: LoweredGraph, second: LoweredGraph) -> bool:
    """Return whether two lowered graphs, of two compiles, are the same graph."""
    return (first.frame, first.direction) == (second.frame, second.direction)


def take_whole(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    """All of the first value, if the second has its form."""
    return first if first.shape == second.shape else None


def find_first_parting(
    first: TracedCall, second: TracedCall, why: Why, project: Project = take_whole
) -> Parting | None:
    """The first operator whose values differ between two executions; None if none that both stored does.

    Args:
        first: one call of the graph, from which the names are taken.
        second: a call of the same graph, of this compile or another one.
        why: why nothing is promised of a difference.
        project: which part of the first value the second is.
    """
    compared: set[str] = set()
    partner = _make_partner_lookup(first, second)
    for name, kernel, buffer, value in first.values():
        seen = partner(buffer)
        part = project(value, seen) if seen is not None else None
        if seen is None or part is None:
            continue
        compared.add(buffer)
        apart = compare_bits(buffer, part, seen)
        if apart is not None and not apart.only_payloads:
            return _make_parting_at(first.lowered, name, kernel, apart, why(kernel, buffer, compared - {buffer}, apart))
    return None


def _make_partner_lookup(first: TracedCall, second: TracedCall) -> Callable[[str], torch.Tensor | None]:
    """Finds the value of the second execution that a buffer of the first is to be compared with."""
    if first.lowered is second.lowered:
        written = {buffer: value for (_, buffer), value in second.call.written.items()}
        return written.get
    there, nodes = second.map_by_operator(), map_buffers_to_nodes(first.lowered)
    return lambda buffer: there.get(first.lowered.labels.get(nodes.get(buffer, ""), ""))


def _make_parting_at(
    lowered: LoweredGraph, name: str, kernel: Kernel, apart: BitDifference, why: str | None
) -> Parting | None:
    node = lowered.find_node(lowered.find_producer(name))
    if node is None:
        return None
    stage = LOWERING if kernel.extern else CODEGEN
    position = next(place for place, each in enumerate(lowered.snapshot.graph.nodes) if each is node)
    return make_parting(lowered, stage, node, apart, "the kernel's values differ", why, kernel, position)


def single_out(parting: Parting, finer: Callable[[], list[Parting]]) -> Parting:
    """The operator of a kernel that makes the difference.

    Args:
        parting: what the compile shows as it is: the kernel, and an operator whose value it stores.
        finer: the partings of a compile in which the kernels store the value of each operator.
    """
    if parting.stage != CODEGEN or parting.kernel is None:
        return parting
    try:
        partings = finer()
    except BitwiseOutOfTime:
        return parting
    same = [each for each in partings if (each.graph, each.direction) == (parting.graph, parting.direction)]
    named = next((each for each in same if each.operator is not None), None)
    if named is None or named.position > parting.position:
        return parting
    return replace(named, kernel=parting.kernel)


def find_parting_behind_kernels(first: TracedCall, second: TracedCall, project: Project = take_whole) -> Parting | None:
    """The parting at a graph whose kernels give the same bits and whose outputs do not; None if those are the same."""
    for number, (value, seen) in enumerate(zip(first.call.outputs or (), second.call.outputs or (), strict=False)):
        if not isinstance(value, torch.Tensor) or not isinstance(seen, torch.Tensor):
            continue
        part = project(value, seen)
        apart = compare_bits(f"output {number}", part, seen) if part is not None else None
        if apart is not None and not apart.only_payloads:
            lowered = first.lowered
            detail = f"output {number} of the graph, behind its kernels: {apart}"
            return Parting(lowered.frame, lowered.direction, RUNTIME, None, apart, detail)
    return None
