"""Boundary between dynamo's graph and that of Inductor's passes: functionalization and decompositions.

Both graphs are run in float64 on the inputs that the program really got. They mean the same, so their outputs (and
gradients) agree to float64's rounding: on generated modules to 1e-14, measured. Nothing that a compile in the
program's own precision hides in its rounding is hidden there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.graph_replay import (
    NodeValues,
    ReplayResult,
    compute_values,
    differentiate_graph,
    list_random_calls,
    replay_graph,
)
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord, Ledger
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.diagnosis.attribution.ablation import Divergence, Evidence
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, coarsest_epsilon, find_inputs, list_placeholders
from fuzzcompile.diagnosis.operators.operator_comparison import check_operators
from fuzzcompile.diagnosis.operators.operator_faults import Fault
from fuzzcompile.diagnosis.oracle import rounding as value_change
from fuzzcompile.diagnosis.stages.ways import Found, Pair, PartedStep, Sides, Way, doubt, walk_pairs
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DECOMPOSITION, JOINT_GRAPH, PRE_GRAD
from fuzzcompile.model.thresholds import (
    AMPLIFIED,
    CONSTANTS_FACTOR,
    HIDDEN_ULPS,
    NOISE_SEEDS,
    SEMANTIC_STEP,
    VANISHING_GRADIENT,
)
from fuzzcompile.model.verdicts import Verdict

# Calls that give other values outside of the grad mode and the transforms that they were captured in.
_NOT_REPLAYED = facts().operators.bound_to_capture
_EPS = torch.finfo(torch.float32).eps
_RESULT, _GRADIENT = "result", "gradient"


@dataclass(frozen=True)
class Boundary:
    """A change of meaning before the graph passes.

    ``step`` is the largest float64 change of an output or gradient in units of its RMS size. ``fault`` is the ATen
    operator whose decomposition is another function; where none is by itself, ``operator`` is the first torch-level one
    whose value differs (None where only gradients do). ``site`` is its line in the user's file.
    """

    frame: int
    step: float
    gradient: bool
    operator: str | None
    nodes: tuple[str, ...]
    site: str | None
    fault: Fault | None = None

    def culprit(self) -> Culprit:
        """The decomposition as a culprit: shown by replay, proved by no compile."""
        if self.fault is not None:
            return replace(self.fault.culprit(confidence="low"), step=self.step)
        name = self.operator
        return Culprit(
            DECOMPOSITION,
            None,
            name,
            name or "unknown",
            nodes=self.nodes,
            site=self.site,
            step=self.step,
            confidence="low",
        )


def _shows_boundary(trial: Trial, count: ReplayCount) -> bool:
    return bool(find_boundaries(trial.ledger, count))


BOUNDARY = Evidence("boundary", _shows_boundary, replays=True)
"""A float64 result that moves between dynamo's graph and the passes, where native values are within rounding."""


def find_boundaries(ledger: Ledger, count: ReplayCount) -> list[Boundary]:
    """The frames whose meaning changed between dynamo's graph and the first graph of Inductor's passes."""
    calls = [call for frame in ledger.frames if (call := _find_crossing(frame, count)) is not None]
    partings = [(call, _pair_graphs(call).find_parting()) for call in calls]
    return [_make_boundary(call, parting) for call, parting in partings if parting is not None]


def _compare_graphs(divergence: Divergence) -> Iterator[Sides[str]]:
    """Dynamo's graph and the first graph of the passes, on the inputs of the first call: results, then gradients."""
    for frame in divergence.trial.ledger.frames:
        call = _find_crossing(frame, divergence.count)
        if call is not None:
            yield _pair_graphs(call)


def _pair_graphs(call: _Crossing) -> Sides[str]:
    def word(parting: PartedStep[str]) -> Found:
        return Found(_make_boundary(call, parting).culprit())

    return Sides(walk_pairs(call.pair_outputs()), word, call.measure)


@dataclass(frozen=True)
class _Crossing:
    """A captured call on both sides: dynamo's graph with its inputs, the first graph of the passes with its own."""

    frame: Frame
    early: GraphRecord
    late: GraphRecord
    given: Sequence[Any]
    inputs: Sequence[Any]
    count: ReplayCount

    def run_early(self, *, double: bool, noise_seed: int | None = None) -> ReplayResult:
        """Dynamo's graph."""
        self.count.replays += 1
        return replay_graph(self.early.snapshots[-1], self.given, double=double, noise_seed=noise_seed)

    def run_late(self, *, double: bool) -> ReplayResult:
        """The graph that the passes get."""
        self.count.replays += 1
        return replay_graph(self.late.snapshots[0], self.inputs, double=double)

    def differentiate_early(self, tangents: Sequence[Any], noise_seed: int | None = None) -> Sequence[Any] | None:
        """The gradients of dynamo's graph, by autograd in float64."""
        self.count.replays += 1
        return differentiate_graph(self.early.snapshots[-1], self.given, tangents, noise_seed=noise_seed)

    @functools.cached_property
    def native(self) -> ReplayResult:
        """Dynamo's graph in the program's own precision."""
        return self.run_early(double=False)

    def pair_outputs(self) -> Iterator[Pair[str]]:
        """The outputs of both graphs in float64, and where a gradient is computed, that it is to be compared too."""
        early, late = self.run_early(double=True), self.run_late(double=True)
        if early.error is not None or late.error is not None or _mutates(self.given, early.inputs):
            return
        joint = self.late.direction == "joint"
        if len(early.outputs) == len(late.outputs) or joint:
            yield Pair(_RESULT, early.outputs, late.outputs)
        if joint:
            yield Pair(_GRADIENT, early.outputs, late.outputs)

    def measure(self, pair: Pair[str]) -> PartedStep[str] | None:
        """Tell results or gradients that are other ones: neither rounding nor constants in float32 explain them."""
        early, late = pair.left, pair.right
        assert isinstance(early, Sequence) and isinstance(late, Sequence)
        gradient = pair.at == _GRADIENT
        step = _measure_gradient_change(self, late) if gradient else _measure_change(early, late)
        shows = step > SEMANTIC_STEP and (gradient or _shows_natively(self, step))
        return PartedStep(pair, step=step) if shows and step > _measure_explained(self, early) else None


def _find_crossing(frame: Frame, count: ReplayCount) -> _Crossing | None:
    """The first captured call of a frame; None if there is none that can be replayed."""
    early, late = frame.find_record(PRE_GRAD), frame.find_record(JOINT_GRAPH)
    if early is None or late is None or not early.snapshots or not late.snapshots or not frame.dynamo_calls:
        return None
    if any(word in call for call in early.snapshots[-1].operator_names for word in _NOT_REPLAYED):
        return None
    inputs = find_inputs(frame, late)
    if inputs is None or list_random_calls(early.snapshots[-1]) or list_random_calls(late.snapshots[0]):
        return None
    return _Crossing(frame, early, late, frame.dynamo_calls[0].inputs, inputs, count)


def _make_boundary(call: _Crossing, parting: PartedStep[str]) -> Boundary:
    """What parted, with the operator at fault as far as it can be told."""
    gradient, step = parting.pair.at == _GRADIENT, parting.step or 0.0
    blamed = _blame_decomposition(call.frame, call.count, step, gradient=gradient)
    if blamed is not None:
        return blamed
    named = (None, (), None) if gradient else _find_operator(call)
    return Boundary(call.frame.index, step, gradient, *named)


def _blame_decomposition(frame: Frame, count: ReplayCount, step: float, *, gradient: bool) -> Boundary | None:
    """The boundary with the first ATen operator whose decomposition gives other values by itself; None without one."""
    checked = check_operators(Ledger(frames=[frame]), count)
    faults = [f for graph in checked for f in graph.faults if f.proved and f.kind in ("values", "mutation")]
    faults.sort(key=lambda fault: fault.place.backward != gradient)
    if not faults:
        return None
    fault = faults[0]
    nodes = (fault.place.node,) if fault.place.node else ()
    name = get_operator_family(fault.operator)
    return Boundary(frame.index, step, gradient, name, nodes, fault.place.location, fault)


def _shows_natively(call: _Crossing, step: float) -> bool:
    """Return whether a change too large for rounding to hide shows in the program's own precision too.

    One that only float64 has comes of running the graph there: ``x.to(torch.float16)`` is ``x`` itself where that is a
    half tensor, and a copy of one that was doubled, into which later writes do not go.
    """
    native, late_run = call.native, call.run_late(double=False)
    if native.error is not None or late_run.error is not None:
        return True
    return (
        step < HIDDEN_ULPS * (coarsest_epsilon(native) or _EPS)
        or _measure_change(native.outputs, late_run.outputs) > step / 10
    )


def _mutates(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether the graph wrote to an input: AOTAutograd then returns other outputs than replay compares."""
    return any(
        value is not afterwards
        for value, afterwards in zip(before, after, strict=True)
        if isinstance(value, torch.Tensor)
    )


def _measure_explained(call: _Crossing, outputs: Sequence[Any]) -> float:
    """Return the change that float64's rounding explains, or a decomposition's constants held in float32.

    The second is the native run's error, scaled from its dtype to float32.
    """
    native, noisy = call.native, [call.run_early(double=True, noise_seed=seed) for seed in NOISE_SEEDS]
    noise = max((_measure_change(outputs, run.outputs) for run in noisy if run.error is None), default=0.0)
    rounding = 0.0 if native.error is not None else _measure_change(outputs, native.outputs)
    return max(AMPLIFIED * noise, CONSTANTS_FACTOR * rounding * min(1.0, _EPS / (coarsest_epsilon(native) or _EPS)))


def _measure_gradient_change(call: _Crossing, joint: Sequence[Any]) -> float:
    """Gradients of dynamo's graph by autograd beside those that the joint graph computes, for the same tangents."""
    named = list(
        zip((str(node.target) for node in list_placeholders(call.late.snapshots[0])), call.inputs, strict=True)
    )
    primals = [value for name, value in named if name.startswith("primals")]
    tangents = [value for name, value in named if name.startswith("tangents")]
    if len(primals) != len(call.given) or not all(map(_alike, primals, call.given)):
        return 0.0
    gradients = call.differentiate_early(tangents)
    if gradients is None:
        return 0.0
    step = _measure_change(gradients, joint[-len(primals) :], together=True)
    if step <= SEMANTIC_STEP:
        return 0.0
    moved = call.differentiate_early(tangents, NOISE_SEEDS[0])
    noise = _measure_change(gradients, moved, together=True) if moved is not None else 0.0
    return step if step > AMPLIFIED * noise else 0.0


def _alike(primal: Any, given: Any) -> bool:
    if not isinstance(primal, torch.Tensor) or not isinstance(given, torch.Tensor):
        return type(primal) is type(given)
    return primal.shape == given.shape and primal.dtype == given.dtype


def _measure_change(before: Sequence[object], after: Sequence[object], *, together: bool = False) -> float:
    """The largest change; ``together``: values much smaller than the usual one are measured on its scale."""
    sizes = [value_change.measure_size(value) for value in before]
    positive = sorted(size for size in sizes if size)
    usual = positive[(len(positive) - 1) // 2] if together and positive else 0.0
    return value_change.largest_change(
        before, after, [usual if size < VANISHING_GRADIENT * usual else 0.0 for size in sizes]
    )


def _find_operator(call: _Crossing) -> tuple[str | None, tuple[str, ...], str | None]:
    """The first torch-level operator whose value differs from that of what it became."""
    call.count.replays += 2
    early_values = compute_values(call.early.snapshots[-1], call.given)
    late_values = compute_values(call.late.snapshots[0], call.inputs)
    made = _map_last_nodes(call.late)
    for node in call.early.snapshots[-1].graph.nodes:
        result = made.get(node.name)
        if result is None or not _differ(early_values, late_values, node, result):
            continue
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return target, (node.name,), find_location([node])
    return None, (), None


def _map_last_nodes(late: GraphRecord) -> dict[str, fx.Node]:
    """The last ATen node that each torch-level node became, by the name of the latter."""
    made: dict[str, fx.Node] = {}
    for node in late.snapshots[0].graph.nodes:
        origin = node.meta.get("from_node")
        if node.op == "call_function" and origin and not node.meta.get("autograd_backward"):
            made[str(origin[-1].name)] = node
    return made


def _differ(early: NodeValues, late: NodeValues, node: fx.Node, result: fx.Node) -> bool:
    value, traced = early.get(node.name), late.get(result.name)
    return value_change.are_comparable(value, traced) and value_change.relative_change(value, traced) > SEMANTIC_STEP


def _may_show(divergence: Divergence) -> bool:
    return divergence.trial.observation.failure is None and divergence.verdict is not Verdict.ACCEPTS_INVALID


GRAPHS = Way("dynamo's graph, and the first graph of the passes", _compare_graphs, doubt, _may_show, most=None)
