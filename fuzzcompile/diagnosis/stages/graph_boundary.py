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

from fuzzcompile.compiler.functional_run import is_bound_to_capture
from fuzzcompile.compiler.graph_replay import (
    ReplayResult,
    compute_values,
    differentiate_graph,
    list_random_calls,
    replay_graph,
)
from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord, Ledger
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.diagnosis.attribution.ablation import Divergence, Evidence
from fuzzcompile.diagnosis.attribution.culprit import UNKNOWN, Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, coarsest_epsilon, find_inputs, list_placeholders
from fuzzcompile.diagnosis.operators.operator_ways import OPERATORS, check_operators
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.stages.ways import Found, Pair, PartedStep, Sides, Way, iter_captured, walk_pairs
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.stages import DECOMPOSITION, JOINT_GRAPH
from fuzzcompile.model.thresholds import (
    AMPLIFIED,
    CONSTANTS_FACTOR,
    HIDDEN_ULPS,
    NOISE_SEEDS,
    SEMANTIC_STEP,
    VANISHING_GRADIENT,
)
from fuzzcompile.model.verdicts import Verdict

_EPS = torch.finfo(torch.float32).eps
_RESULT, _GRADIENT = "result", "gradient"


@dataclass(frozen=True)
class Boundary:
    """A change of meaning before the graph passes of a frame, in an output or a gradient.

    The culprit is the first ATen operator whose decomposition is another function; where none is by itself, the first
    torch-level one whose value differs (unknown where only gradients do). It is shown by replay, proved by no compile.
    """

    frame: int
    gradient: bool
    culprit: Culprit

    @property
    def step(self) -> float:
        """The largest float64 change in units of the value's RMS size."""
        return self.culprit.step or 0.0

    @property
    def operator(self) -> str | None:
        """The operator's name without namespace and overload; None if none could be singled out."""
        return self.culprit.family if self.culprit.is_named else None


def find_boundaries(ledger: Ledger, count: ReplayCount) -> list[Boundary]:
    """The frames whose meaning changed between dynamo's graph and the first graph of Inductor's passes."""
    calls = _iter_crossings(ledger, count)
    partings = ((call, call.make_sides().find_parting()) for call in calls)
    return [_make_boundary(call, parting) for call, parting in partings if parting is not None]


def _shows_boundary(trial: Trial, count: ReplayCount) -> bool:
    return bool(find_boundaries(trial.ledger, count))


BOUNDARY = Evidence("boundary", _shows_boundary, replays=True)
"""A float64 result that moves between dynamo's graph and the passes, where native values are within rounding."""


def _compare_graphs(divergence: Divergence) -> Iterator[Sides[str]]:
    """Dynamo's graph and the first graph of the passes, on the inputs of the first call: results, then gradients.

    A decomposition that is certainly another function by itself needs no such look.
    """
    decomposed = (each for each in divergence.once(OPERATORS.find) if each.culprit.stage == DECOMPOSITION)
    if not any(each.certain for each in decomposed):
        for call in _iter_crossings(divergence.trial.ledger, divergence.count):
            yield call.make_sides()


@dataclass(frozen=True)
class _Crossing:
    """A captured call on both sides: dynamo's graph with its inputs, the first graph of the passes with its own."""

    frame: Frame
    early: GraphRecord
    late: GraphRecord
    given: Sequence[Any]
    inputs: Sequence[Any]
    count: ReplayCount

    def make_sides(self) -> Sides[str]:
        def word(parting: PartedStep[str]) -> Found:
            return Found(_make_boundary(self, parting).culprit)

        return Sides(walk_pairs(self.pair_outputs()), word, self.measure)

    def run_early(self, *, double: bool, noise_seed: int | None = None) -> ReplayResult:
        self.count.replays += 1
        return replay_graph(self.early.snapshots[-1], self.given, double=double, noise_seed=noise_seed)

    def run_late(self, *, double: bool) -> ReplayResult:
        self.count.replays += 1
        return replay_graph(self.late.snapshots[0], self.inputs, double=double)

    def differentiate_early(self, tangents: Sequence[Any], noise_seed: int | None = None) -> Sequence[Any] | None:
        self.count.replays += 1
        return differentiate_graph(self.early.snapshots[-1], self.given, tangents, noise_seed=noise_seed)

    @functools.cached_property
    def native(self) -> ReplayResult:
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


def _iter_crossings(ledger: Ledger, count: ReplayCount) -> Iterator[_Crossing]:
    """The first captured call of each frame that can be replayed."""
    for frame, early, given in iter_captured(ledger):
        late = frame.find_record(JOINT_GRAPH)
        if late is None or not late.snapshots or not frame.dynamo_calls or is_bound_to_capture(early.snapshots[-1]):
            continue
        inputs = find_inputs(frame, late)
        if inputs is not None and not any(map(list_random_calls, (early.snapshots[-1], late.snapshots[0]))):
            yield _Crossing(frame, early, late, given, inputs, count)


def _make_boundary(call: _Crossing, parting: PartedStep[str]) -> Boundary:
    gradient = parting.pair.at == _GRADIENT
    culprit = _blame_decomposition(call, gradient=gradient)
    if culprit is None:
        node = None if gradient else _find_operator(call)
        name = None
        if node is not None:
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        nodes, site = ((node.name,), find_location([node])) if node is not None else ((), None)
        culprit = Culprit(DECOMPOSITION, None, name, name or UNKNOWN, nodes=nodes, site=site)
    return Boundary(call.frame.index, gradient, replace(culprit, step=parting.step, confidence="low"))


def _blame_decomposition(call: _Crossing, *, gradient: bool) -> Culprit | None:
    """The first ATen operator whose decomposition gives other values by itself."""
    checked = check_operators(Ledger(frames=[call.frame]), call.count)
    faults = [fault.culprit for graph in checked for fault in graph.faults if fault.certain]
    faults = [culprit for culprit in faults if culprit.details["kind"] in ("values", "mutation")]
    return min(faults, key=lambda culprit: culprit.details["backward"] != gradient, default=None)


def _shows_natively(call: _Crossing, step: float) -> bool:
    """Return whether a change too large for rounding to hide shows in the program's own precision too.

    One that only float64 has comes of running the graph there: ``x.to(torch.float16)`` is ``x`` itself where that is a
    half tensor, and a copy of one that was doubled, into which later writes do not go.
    """
    native, late_run = call.native, call.run_late(double=False)
    if native.error is not None or late_run.error is not None:
        return True
    hidden = step < HIDDEN_ULPS * (coarsest_epsilon(native) or _EPS)
    return hidden or _measure_change(native.outputs, late_run.outputs) > step / 10


def _mutates(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether the graph wrote to an input: AOTAutograd then returns other outputs than replay compares."""
    pairs = zip(before, after, strict=True)
    return any(value is not afterwards for value, afterwards in pairs if isinstance(value, torch.Tensor))


def _measure_explained(call: _Crossing, outputs: Sequence[Any]) -> float:
    """Return the change that float64's rounding explains, or a decomposition's constants held in float32.

    The second is the native run's error, scaled from its dtype to float32.
    """
    native, noisy = call.native, [call.run_early(double=True, noise_seed=seed) for seed in NOISE_SEEDS]
    noise = max((_measure_change(outputs, run.outputs) for run in noisy if run.error is None), default=0.0)
    error = 0.0 if native.error is not None else _measure_change(outputs, native.outputs)
    return max(AMPLIFIED * noise, CONSTANTS_FACTOR * error * min(1.0, _EPS / (coarsest_epsilon(native) or _EPS)))


def _measure_gradient_change(call: _Crossing, joint: Sequence[Any]) -> float:
    """Gradients of dynamo's graph by autograd beside those that the joint graph computes, for the same tangents."""
    names = (str(node.target) for node in list_placeholders(call.late.snapshots[0]))
    named = list(zip(names, call.inputs, strict=True))
    primals = [value for name, value in named if name.startswith("primals")]
    tangents = [value for name, value in named if name.startswith("tangents")]
    if len(primals) != len(call.given) or not all(map(_alike, primals, call.given)):
        return 0.0
    gradients = call.differentiate_early(tangents)
    step = _measure_change(gradients, joint[-len(primals) :], together=True) if gradients is not None else 0.0
    if gradients is None or step <= SEMANTIC_STEP:
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
    sizes = [rounding.measure_size(value) for value in before]
    positive = sorted(size for size in sizes if size)
    usual = positive[(len(positive) - 1) // 2] if together and positive else 0.0
    return rounding.largest_change(
        before, after, [usual if size < VANISHING_GRADIENT * usual else 0.0 for size in sizes]
    )


def _find_operator(call: _Crossing) -> fx.Node | None:
    call.count.replays += 2
    early, late = call.early.snapshots[-1], call.late.snapshots[0]
    early_values, late_values = compute_values(early, call.given), compute_values(late, call.inputs)
    made: dict[str, object] = {}  # the value of the last ATen node that each torch-level node became
    for node in late.graph.nodes:
        origin = node.meta.get("from_node")
        if node.op == "call_function" and origin and not node.meta.get("autograd_backward"):
            made[str(origin[-1].name)] = late_values.get(node.name)

    def differs(node: fx.Node) -> bool:
        value, traced = early_values.get(node.name), made.get(node.name)
        return rounding.are_comparable(value, traced) and rounding.relative_change(value, traced) > SEMANTIC_STEP

    return next(filter(differs, early.graph.nodes), None)


def _may_show(divergence: Divergence) -> bool:
    return divergence.trial.observation.failure is None and divergence.verdict is not Verdict.ACCEPTS_INVALID


GRAPHS = Way("dynamo's graph, and the first graph of the passes", _compare_graphs, shows=_may_show, most=None)
