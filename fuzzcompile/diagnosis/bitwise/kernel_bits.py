"""Partings in lowered graphs: of one execution from ATen, and of two executions from each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import fx

from fuzzcompile.compiler.kernels import ir_evaluation
from fuzzcompile.compiler.kernels.kernel_loops import find_loop_nodes, list_loop_operators
from fuzzcompile.compiler.kernels.lowering_control import find_lowering_source, parse_operator
from fuzzcompile.compiler.watch.ledger import GraphCall, Kernel, LoweredGraph, Unseen, UnseenLog, format_reason
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.bitwise import bit_difference as bits
from fuzzcompile.diagnosis.bitwise.execution import BitwiseOutOfTime
from fuzzcompile.diagnosis.kernels.code_generators import find_generator
from fuzzcompile.diagnosis.kernels.watched_graph import WatchedGraph, find_kernel, find_site
from fuzzcompile.diagnosis.stages.ways import Pair, Sides, walk_pairs
from fuzzcompile.model.stages import CODEGEN, LOWERING, RUNTIME

# One execution of a graph, each step on what it really read: its lowerings beside ATen, its kernels beside their loops.


def find_call_partings(look: WatchedGraph) -> list[bits.Parting]:
    """The partings of lowerings, kernels and the wrapper from the right values in one call, in graph order."""
    lowered, inputs = look.lowered, look.inputs or ()
    inexact = {
        buffer: kernel.extern or not bits.is_exact(list_loop_operators(kernel, buffer))
        for kernel in lowered.kernels
        for buffer in kernel.writes
    }
    followed = ir_evaluation.ExecutionEvaluation(lowered, inputs, look.interpret(double=False), look.call, inexact)
    found: list[bits.Parting | None] = []
    try:
        found += [_compare_lowering(lowered, each) for each in ir_evaluation.compare_operators(followed, inputs)]
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # an operator that does not run on these values leaves the rest uncompared
        missed = Unseen("operators of a graph", format_reason(error), (LOWERING, CODEGEN), "places where bits part")
        UnseenLog().note(missed)
    with contextlib.suppress(*ir_evaluation.NOT_FOLLOWED, ValueError):
        followed.finish()
    found += [_compare_kernel(lowered, stored) for stored in followed.stored.values()]
    found += _compare_outputs(look, followed)
    return sorted((each for each in found if each is not None), key=lambda parting: parting.position)


def _compare_lowering(lowered: LoweredGraph, applied: ir_evaluation.AppliedOperator) -> bits.Parting | None:
    aten, value, node = applied.aten, applied.lowered, applied.node
    rounded = value.to(aten.dtype)
    if value.is_floating_point() and aten.is_floating_point():
        left, why = bits.compare_bits(node.name, rounded.to(value.dtype), value), bits.why_open_cast(node)
        if left is not None and not left.only_payloads:
            if applied.reads_unrounded and why is not None:
                return None
            what = f"its result is not rounded to {str(aten.dtype).removeprefix('torch.')}"
            return make_parting(lowered, LOWERING, node, left, what, why)
    apart = None if applied.reads_unrounded else bits.compare_bits(node.name, aten, rounded)
    if apart is None:
        return None
    return make_parting(lowered, LOWERING, node, apart, "not what ATen gives", bits.why_open_bits(node, aten, apart))


def _compare_kernel(lowered: LoweredGraph, stored: ir_evaluation.StoredBuffer) -> bits.Parting | None:
    if stored.meant is None or stored.meant.shape != stored.written.shape:
        return None
    apart = bits.compare_bits(stored.buffer, stored.meant, stored.written)
    kernel = lowered.kernels[stored.kernel]
    name = stored.node or (kernel.nodes[-1] if kernel.nodes else None)
    node = lowered.find_node(name) if name is not None else None
    if apart is None or node is None:
        return None
    operators, names = list_loop_operators(kernel, stored.buffer), find_loop_nodes(kernel, stored.buffer)
    nodes = [node for node in lowered.snapshot.graph.nodes if node.name in names]
    why = bits.why_open_code(operators, nodes, apart, stored.written.dtype, reads_unknown=stored.reads_unknown)
    what = "the kernel writes something else than a loop that the lowering wrote"
    return make_parting(lowered, CODEGEN, node, apart, what, why, kernel)


def _compare_outputs(look: WatchedGraph, followed: ir_evaluation.ExecutionEvaluation) -> Iterator[bits.Parting]:
    lowered = look.lowered
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    for node, value in zip(lowered.snapshot.results, look.call.outputs or (), strict=False):
        stored = followed.find_stored(node.name) if isinstance(node, fx.Node) else None
        if stored is None or not isinstance(value, torch.Tensor) or stored.written.shape != value.shape:
            continue
        apart = bits.compare_bits(node.name, stored.written, value.cpu())
        later = (name for kernel in lowered.kernels[stored.kernel + 1 :] for name in kernel.writes)
        if apart is not None and not any(renamed.get(name, name) == stored.buffer for name in later):
            what = f"output {node.name} is not what the kernel wrote: {apart}"
            culprit = Culprit.from_operator(RUNTIME, None)
            position = _find_position(lowered, node)
            yield bits.Parting(lowered.frame, lowered.direction, culprit, apart, what, position=position)


def _find_position(lowered: LoweredGraph, node: fx.Node) -> int:
    return next((place for place, each in enumerate(lowered.snapshot.graph.nodes) if each.name == node.name), 0)


def make_parting(
    lowered: LoweredGraph,
    stage: str,
    node: fx.Node,
    apart: bits.BitDifference,
    what: str,
    why: str | None,
    kernel: Kernel | None = None,
) -> bits.Parting:
    """A parting at a node of a lowered graph; its kernel is the first that computes the node, if none is given."""
    position = _find_position(lowered, node)
    node = lowered.find_node(lowered.find_producer(node.name)) or node  # of several results, the operator
    kernel = kernel or find_kernel(lowered, node.name)
    label = lowered.labels.get(node.name)
    source, line = find_lowering_source(node.target)
    if stage == CODEGEN and kernel is not None and not kernel.extern:
        code = find_generator(lowered, kernel.name).find_fusion_code()
        source, line = code.source, code.line
    operator, site = parse_operator(label) if label else None, find_site(lowered, node.name)
    culprit = Culprit.from_operator(stage, operator, nodes=(node.name,), source=source, line=line, site=site)
    name = kernel.name if kernel is not None else None
    return bits.Parting(lowered.frame, lowered.direction, culprit, apart, f"{what}: {apart}", name, why, position)


# Two executions of one program held against each other: the first kernel and operator whose values differ.

# Why nothing is promised of a kernel and one of its buffers, given the buffers that were the same before it, and how
# the values differ; None where equal bits are.
Why = Callable[[Kernel, str, Collection[str], bits.BitDifference], str | None]
# The part of the first value that the second should equal; None where they cannot be compared.
Project = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]


class TracedCall(NamedTuple):
    """One call of a lowered graph."""

    lowered: LoweredGraph
    call: GraphCall


class _Written(NamedTuple):
    """A value that a kernel wrote to a buffer; its node, or else the last operator of the kernel."""

    node: str
    kernel: Kernel
    buffer: str


def take_whole(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    """All of the first value, if the second has its form."""
    return first if first.shape == second.shape else None


def find_first_parting(
    first: LoweredGraph,
    second: Iterable[LoweredGraph],
    calls: Callable[[LoweredGraph], Iterable[tuple[GraphCall, GraphCall]]],
    why: Why,
    project: Project = take_whole,
) -> bits.Parting | None:
    """The first operator whose values differ between calls of a graph and of the same graph among ``second``.

    Else the graph, where its kernels give the same bits and its outputs do not. ``why`` says why nothing is promised of
    a difference, and ``project`` which part of the first value the second is.
    """
    partner = next((each for each in second if (each.frame, each.direction) == (first.frame, first.direction)), None)
    for before, after in calls(partner) if partner is not None else ():
        pair = TracedCall(first, before), TracedCall(partner or first, after)
        parting = _find_in_kernels(*pair, why, project) or _find_behind_kernels(*pair, project)
        if parting is not None:
            return parting
    return None


def _find_in_kernels(first: TracedCall, second: TracedCall, why: Why, project: Project) -> bits.Parting | None:
    lowered, nodes = first.lowered, ir_evaluation.map_buffers_to_nodes(first.lowered)
    compared: set[str] = set()

    def label(graph: LoweredGraph, buffer: str) -> str | None:
        """What means the same operator in another compile; in the same compile, the buffer itself."""
        if first.lowered is second.lowered:
            return buffer
        return graph.labels.get(ir_evaluation.map_buffers_to_nodes(graph).get(buffer, ""))

    there = {label(second.lowered, buffer): value for (_, buffer), value in second.call.written.items()}

    def pair_values() -> Iterator[Pair[_Written]]:
        for (number, buffer), value in first.call.written.items():
            kernel, name = lowered.kernels[number], label(lowered, buffer)
            seen = there.get(name) if name is not None else None
            part = project(value, seen) if seen is not None else None
            if part is not None:
                yield Pair(_Written(nodes.get(buffer) or next(reversed(kernel.nodes), ""), kernel, buffer), part, seen)
                compared.add(buffer)

    parting = Sides(walk_pairs(pair_values()), lambda parting: None, bits.measure_bits).find_parting()
    if parting is None:
        return None
    at, left, right = parting.pair.at, parting.pair.left, parting.pair.right
    node = lowered.find_node(at.node)
    assert isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    apart = bits.compare_bits(at.buffer, left, right)
    if node is None or apart is None:
        return None
    stage = LOWERING if at.kernel.extern else CODEGEN
    open_bits = why(at.kernel, at.buffer, compared, apart)
    return make_parting(lowered, stage, node, apart, "the kernel's values differ", open_bits, at.kernel)


def _find_behind_kernels(first: TracedCall, second: TracedCall, project: Project) -> bits.Parting | None:
    for number, (value, seen) in enumerate(zip(first.call.outputs or (), second.call.outputs or (), strict=False)):
        if isinstance(value, torch.Tensor) and isinstance(seen, torch.Tensor):
            part = project(value, seen)
            apart = bits.compare_bits(f"output {number}", part, seen) if part is not None else None
            if apart is not None and not apart.only_payloads:
                detail = f"output {number} of the graph, behind its kernels: {apart}"
                culprit = Culprit.from_operator(RUNTIME, None)
                return bits.Parting(first.lowered.frame, first.lowered.direction, culprit, apart, detail)
    return None


def single_out(parting: bits.Parting, finer: Callable[[], list[bits.Parting]]) -> bits.Parting:
    """The operator of a kernel that makes the difference.

    ``parting`` names an operator whose value the kernel stores; ``finer`` finds the partings of a compile in which
    kernels store the value of each operator.
    """
    if parting.culprit.stage != CODEGEN or parting.kernel is None:
        return parting
    try:
        partings = finer()
    except BitwiseOutOfTime:
        return parting
    same = (each for each in partings if each.place == parting.place and each.culprit.rewrite is not None)
    named = next(same, None)
    if named is None or named.position > parting.position:
        return parting
    return replace(named, kernel=parting.kernel)
