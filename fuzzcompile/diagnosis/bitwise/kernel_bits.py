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
from fuzzcompile.diagnosis.stages.ways import Pair, PartedStep, Sides, walk_pairs
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
            yield _make_runtime_parting(lowered, apart, what, _find_position(lowered, node))


def _make_runtime_parting(
    lowered: LoweredGraph, apart: bits.BitDifference, what: str, position: int = 0
) -> bits.Parting:
    culprit = Culprit.from_operator(RUNTIME, None)
    return bits.Parting(lowered.frame, lowered.direction, culprit, apart, what, position=position)


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


class _Written(NamedTuple):
    """A value that a kernel wrote to a buffer, for a node or else the last operator of the kernel; or an output."""

    name: str
    node: str = ""
    kernel: Kernel | None = None


def take_whole(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    """All of the first value, if the second has its form."""
    return first if first.shape == second.shape else None


def find_first_parting(
    first: LoweredGraph,
    others: Iterable[LoweredGraph],
    calls: Callable[[LoweredGraph], Iterable[tuple[GraphCall, GraphCall]]],
    why: Why,
    project: Project = take_whole,
) -> bits.Parting | None:
    """The first operator whose values differ between calls of a graph and of the same graph among ``others``.

    Else the graph, where its kernels give the same bits and its outputs do not. ``why`` says why nothing is promised of
    a difference, and ``project`` which part of the first value the second is.
    """
    second = next((each for each in others if (each.frame, each.direction) == (first.frame, first.direction)), None)
    for before, after in calls(second) if second is not None else ():
        compared: set[str] = set()
        pairs = _pair_values(first, before, second or first, after, project, compared)
        parting = Sides(walk_pairs(pairs), lambda parting: None, bits.measure_bits).find_parting()
        if parting is not None:
            return _word_parting(first, parting, why, compared)
    return None


def _word_parting(
    lowered: LoweredGraph, parting: PartedStep[_Written], why: Why, compared: Collection[str]
) -> bits.Parting | None:
    at, left, right = parting.pair.at, parting.pair.left, parting.pair.right
    assert isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    apart, node = bits.compare_bits(at.name, left, right), lowered.find_node(at.node)
    assert apart is not None, "these bits part"
    if at.kernel is None:
        return _make_runtime_parting(lowered, apart, f"{at.name} of the graph, behind its kernels: {apart}")
    stage, unpromised = LOWERING if at.kernel.extern else CODEGEN, why(at.kernel, at.name, compared, apart)
    what = "the kernel's values differ"
    return make_parting(lowered, stage, node, apart, what, unpromised, at.kernel) if node is not None else None


def _pair_values(
    first: LoweredGraph,
    before: GraphCall,
    second: LoweredGraph,
    after: GraphCall,
    project: Project,
    compared: set[str],
) -> Iterator[Pair[_Written]]:
    """What kernels wrote in two calls, then what the graphs returned; ``compared`` are the buffers that were paired."""

    def label(graph: LoweredGraph, nodes: dict[str, str], buffer: str) -> str | None:
        """What means the same operator in another compile; in the same compile, the buffer itself."""
        return buffer if first is second else graph.labels.get(nodes.get(buffer, ""))

    nodes, others = ir_evaluation.map_buffers_to_nodes(first), ir_evaluation.map_buffers_to_nodes(second)
    there = {label(second, others, buffer): value for (_, buffer), value in after.written.items()}
    for (number, buffer), value in before.written.items():
        kernel, name = first.kernels[number], label(first, nodes, buffer)
        seen = there.get(name) if name is not None else None
        part = project(value, seen) if seen is not None else None
        if part is not None:
            yield Pair(_Written(buffer, nodes.get(buffer) or next(reversed(kernel.nodes), ""), kernel), part, seen)
            compared.add(buffer)
    for number, (output, returned) in enumerate(zip(before.outputs or (), after.outputs or (), strict=False)):
        if isinstance(output, torch.Tensor) and isinstance(returned, torch.Tensor):
            yield Pair(_Written(f"output {number}"), project(output, returned), returned)


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
