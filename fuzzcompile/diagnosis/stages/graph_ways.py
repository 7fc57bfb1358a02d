"""Ways between graphs: dynamo's and the first of the passes, the joint graph and its parts, values and metadata.

Dynamo's graph and that of Inductor's passes are run in float64 on the inputs that the program really got. They mean the
same, so their outputs (and gradients) agree to float64's rounding: on generated modules to 1e-14, measured. Nothing
that a compile in the program's own precision hides in its rounding is hidden there.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import (
    CAPTURE_ONLY,
    TRACE_ONLY,
    DistinctOutputs,
    InductorSettings,
    MetadataFromKernel,
)
from fuzzcompile.compiler.functional_run import is_bound_to_capture, run_eagerly
from fuzzcompile.compiler.graph_replay import (
    ReplayResult,
    compute_values,
    differentiate_graph,
    is_strided,
    list_random_calls,
    replay_graph,
)
from fuzzcompile.compiler.operators.operator_application import find_fake_function, get_hint, may_be
from fuzzcompile.compiler.watch.aot_autograd import (
    describe_partitioner,
    make_partitioning_without_repeated_draws,
    make_plain_partitioning,
)
from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord, Ledger, Snapshot
from fuzzcompile.compiler.watch.recorder import is_tangent
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source
from fuzzcompile.diagnosis.attribution.culprit import UNKNOWN, Ablator, Attribution, Culprit, Divergence, Evidence
from fuzzcompile.diagnosis.attribution.steps import coarsest_epsilon, find_inputs, list_placeholders
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages import ways
from fuzzcompile.diagnosis.stages.operator_ways import OPERATORS, check_operators
from fuzzcompile.diagnosis.stages.ways import Found
from fuzzcompile.model import stages
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DECOMPOSITION, JOINT_GRAPH
from fuzzcompile.model.thresholds import (
    AMPLIFIED,
    CONSTANTS_FACTOR,
    HIDDEN_ULPS,
    NATIVE_SHARE,
    NOISE_SEEDS,
    SEMANTIC_STEP,
    VANISHING_GRADIENT,
)
from fuzzcompile.model.verdicts import ERRORS, Verdict
from fuzzcompile.run.sharded_tensors import drop_meshes

_EPS = torch.finfo(torch.float32).eps
_RESULT, _GRADIENT = "result", "gradient"


class Boundary(NamedTuple):
    """A change of meaning before the graph passes of a frame, in an output or a gradient.

    ``step`` is the largest float64 change in units of the value's RMS size. The culprit is the first ATen operator
    whose decomposition is another function; where none is by itself, the first torch-level one whose value differs
    (unknown where only gradients do), and ``operator`` its name without namespace and overload. It is shown by replay,
    proved by no compile.
    """

    frame: int
    gradient: bool
    step: float
    operator: str | None
    culprit: Culprit


def find_boundaries(ledger: Ledger) -> list[Boundary]:
    """The frames whose meaning changed between dynamo's graph and the first graph of Inductor's passes."""
    partings = ((call, call.make_sides().find_parting()) for call in _iter_crossings(ledger))
    return [_make_boundary(call, parting) for call, parting in partings if parting is not None]


BOUNDARY = Evidence(lambda trial: bool(find_boundaries(trial.ledger)), replays=True)
"""A float64 result that moves between dynamo's graph and the passes, where native values are within rounding."""


def _compare_graphs(divergence: Divergence) -> Iterator[ways.Sides[str]]:
    decomposed = (each for each in divergence.once(OPERATORS.find) if each.culprit.stage == DECOMPOSITION)
    if not any(each.certain for each in decomposed):
        for call in _iter_crossings(divergence.trial.ledger):
            yield call.make_sides()


@dataclass(frozen=True)
class _Crossing:
    """A captured call on both sides: dynamo's graph with its inputs, the first graph of the passes with its own."""

    frame: Frame
    early: Snapshot
    late: Snapshot
    given: Sequence[Any]
    inputs: Sequence[Any]
    joint: bool  # whether the late graph computes gradients too

    def make_sides(self) -> ways.Sides[str]:
        def word(parting: ways.PartedStep[str]) -> Found:
            return Found(_make_boundary(self, parting).culprit)

        return ways.Sides(ways.walk_pairs(self.pair_outputs()), word, self.measure)

    @functools.cached_property
    def native(self) -> ReplayResult:
        return replay_graph(self.early, self.given, double=False)

    @functools.cached_property
    def in_double(self) -> tuple[ReplayResult, ReplayResult]:
        return replay_graph(self.early, self.given, double=True), replay_graph(self.late, self.inputs, double=True)

    @functools.cached_property
    def keeps_inputs(self) -> bool:
        """Return whether each input of the late graph is dynamo's at the same place, tangents aside."""
        named = zip(list_placeholders(self.late), self.inputs, strict=True)
        primals = [value for node, value in named if not is_tangent(node)]
        forms = (
            [(getattr(each, "shape", type(each)), getattr(each, "dtype", None)) for each in values]
            for values in (primals, self.given)
        )
        return next(forms) == next(forms)

    @functools.cached_property
    def writes(self) -> tuple[list[int], list[int]]:
        """Positions of the inputs that are written to: by AOTAutograd's runtime, and in the late graph."""
        early, late = self.in_double
        pairs = enumerate(zip(self.given, early.inputs, strict=True))
        written = [at for at, (given, left) in pairs if isinstance(given, torch.Tensor) and given is not left]
        inside = [at for at in written if self.keeps_inputs and late.inputs[at] is not self.inputs[at]]
        return [at for at in written if at not in inside], inside

    def list_results(self, run: ReplayResult, *, late: bool) -> list[object]:
        """List what a run leaves: inputs that AOTAutograd's runtime writes, outputs, other inputs written to."""
        behind, inside = self.writes
        # The late graph returns what the runtime is to write, ahead of all else.
        outputs = drop_meshes(run.outputs) if late else [*(run.inputs[at] for at in behind), *run.outputs]
        results = len(behind) + len(self.in_double[0].outputs)
        return [*outputs[:results], *(run.inputs[at] for at in inside)]

    def pair_outputs(self) -> Iterator[ways.Pair[str]]:
        """Pair what both graphs leave in float64, and where a gradient is computed, demand that it is compared too."""
        early, late = self.in_double
        if early.error is not None or late.error is not None or (any(self.writes) and not self.keeps_inputs):
            return
        left, right = self.list_results(early, late=False), self.list_results(late, late=True)
        if self.joint or len(self.writes[0]) + len(early.outputs) == len(drop_meshes(late.outputs)):
            yield ways.Pair(_RESULT, left, right)
        if self.joint:
            yield ways.Pair(_GRADIENT, left, drop_meshes(late.outputs))

    def measure(self, pair: ways.Pair[str]) -> ways.PartedStep[str] | None:
        """Tell results or gradients that are other ones: neither rounding nor constants in float32 explain them."""
        early, late = pair.left, pair.right
        assert isinstance(early, Sequence) and isinstance(late, Sequence)
        gradient = pair.at == _GRADIENT
        step = _measure_gradient_change(self, late) if gradient else _measure_change(early, late)
        shows = step > SEMANTIC_STEP and (gradient or _shows_natively(self, step))
        return ways.PartedStep(pair, step=step) if shows and step > _measure_explained(self, early) else None


def _iter_crossings(ledger: Ledger) -> Iterator[_Crossing]:
    for frame, record, given in ways.iter_captured(ledger):
        early, passes = record.snapshots[-1], frame.find_record(JOINT_GRAPH)
        if passes is None or not passes.snapshots or not frame.dynamo_calls or is_bound_to_capture(early):
            continue
        late, inputs = passes.snapshots[0], find_inputs(frame, passes)
        if inputs is not None and not any(map(list_random_calls, (early, late))):
            yield _Crossing(frame, early, late, given, inputs, passes.direction == "joint")


def _make_boundary(call: _Crossing, parting: ways.PartedStep[str]) -> Boundary:
    gradient = parting.pair.at == _GRADIENT
    # The first ATen operator whose decomposition gives other values by itself.
    checked = check_operators(Ledger(frames=[call.frame]))
    faults = [fault.culprit for graph in checked for fault in graph.faults if fault.certain]
    faults = [fault for fault in faults if fault.details["kind"] in ("values", "mutation")]
    culprit = min(faults, key=lambda fault: fault.details["backward"] != gradient, default=None)
    if culprit is None:
        node = None if gradient else _find_operator(call)
        name = None
        if node is not None:
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        nodes, site = ((node.name,), find_location([node])) if node is not None else ((), None)
        culprit = Culprit(DECOMPOSITION, None, name, name or UNKNOWN, nodes=nodes, site=site)
    named = culprit.family if culprit.is_named else None
    culprit = replace(culprit, step=parting.step, confidence="low")
    return Boundary(call.frame.index, gradient, parting.step or 0.0, named, culprit)


def _shows_natively(call: _Crossing, step: float) -> bool:
    """Return whether a change too large for rounding to hide shows in the program's own precision too.

    One that only float64 has comes of running the graph there: ``x.to(torch.float16)`` is ``x`` itself where that is a
    half tensor, and a copy of one that was doubled, into which later writes do not go.
    """
    native, late = call.native, replay_graph(call.late, call.inputs, double=False)
    if native.error is not None or late.error is not None:
        return True
    hidden = step < HIDDEN_ULPS * (coarsest_epsilon(native) or _EPS)
    left, right = call.list_results(native, late=False), call.list_results(late, late=True)
    return hidden or _measure_change(left, right) > NATIVE_SHARE * step


def _measure_explained(call: _Crossing, outputs: Sequence[Any]) -> float:
    """The change that float64's rounding explains, or constants in float32: the native error, scaled to that dtype."""
    native = call.native
    noisy = [replay_graph(call.early, call.given, double=True, noise_seed=seed) for seed in NOISE_SEEDS]
    changes = [
        _measure_change(outputs, call.list_results(run, late=False)) if run.error is None else 0.0
        for run in (native, *noisy)
    ]
    error, noise = changes[0], max(changes[1:])
    return max(AMPLIFIED * noise, CONSTANTS_FACTOR * error * min(1.0, _EPS / (coarsest_epsilon(native) or _EPS)))


def _measure_gradient_change(call: _Crossing, joint: Sequence[Any]) -> float:
    """Gradients of dynamo's graph by autograd beside those that the joint graph computes, for the same tangents."""
    named = zip(list_placeholders(call.late), call.inputs, strict=True)
    tangents = [value for node, value in named if is_tangent(node)]
    if not call.keeps_inputs:
        return 0.0
    differentiate = partial(differentiate_graph, call.early, call.given, tangents, written=call.writes[0])
    gradients = differentiate()
    step = _measure_change(gradients, joint[-len(gradients) :], together=True) if gradients is not None else 0.0
    if gradients is None or step <= SEMANTIC_STEP:
        return 0.0
    moved = differentiate(noise_seed=NOISE_SEEDS[0])
    noise = _measure_change(gradients, moved, together=True) if moved is not None else 0.0
    return step if step > AMPLIFIED * noise else 0.0


def _measure_change(before: Sequence[object], after: Sequence[object], *, together: bool = False) -> float:
    """The largest change; ``together``: values much smaller than the usual one are measured on its scale."""
    sizes = [rounding.measure_size(value) for value in before]
    positive = sorted(size for size in sizes if size)
    usual = positive[(len(positive) - 1) // 2] if together and positive else 0.0
    return rounding.largest_change(
        before, after, [usual if size < VANISHING_GRADIENT * usual else 0.0 for size in sizes]
    )


def _find_operator(call: _Crossing) -> fx.Node | None:
    early_values, late_values = compute_values(call.early, call.given), compute_values(call.late, call.inputs)
    made: dict[str, object] = {}  # the value of the last ATen node that each torch-level node became
    for node in call.late.graph.nodes:
        origin = node.meta.get("from_node")
        if node.op == "call_function" and origin and not node.meta.get("autograd_backward"):
            made[str(origin[-1].name)] = late_values.get(node.name)

    def differs(node: fx.Node) -> bool:
        value, traced = early_values.get(node.name), made.get(node.name)
        return rounding.are_comparable(value, traced) and rounding.relative_change(value, traced) > SEMANTIC_STEP

    return next(filter(differs, call.early.graph.nodes), None)


GRAPHS = ways.Way(
    "dynamo's graph, and the first graph of the passes",
    _compare_graphs,
    shows=lambda seen: seen.trial.observation.failure is None and seen.verdict is not Verdict.ACCEPTS_INVALID,
    most=None,
)


# What runs around graphs that are right.


def prove_runtime(ablator: Ablator) -> Attribution | None:
    """AOTAutograd's runtime, where all its graphs mean what dynamo's do and the backend ``aot_eager`` is wrong too.

    Nothing can do without it: confidence is low.
    """
    marked = any(each.finding == "requires_grad" for each in ablator.trial.judgement.comparisons)
    crossings = list(_iter_crossings(ablator.trial.ledger)) if ablator.is_of_values or marked else []
    captured = [frame for frame in ablator.trial.ledger.frames if frame.find_record(stages.PRE_GRAD) is not None]
    if not crossings or len(crossings) < len(captured) or not all(map(_means_the_same, crossings)):
        return None
    if ablator.is_repaired_by(TRACE_ONLY, record=False) or not ablator.is_repaired_by(CAPTURE_ONLY, record=False):
        return None
    differentiates = any(call.joint for call in crossings) and (marked or ablator.verdict is Verdict.WRONG_GRADIENT)
    place = facts().aot_autograd.autograd_function if differentiates else facts().aot_autograd.runtime
    details: DetailsJson = {"kind": "gradient" if marked else "values"}
    return Attribution(
        Culprit.from_function(stages.FUNCTIONALIZATION, place, "runtime wrapper", confidence="low", details=details)
    )


def prove_repeated_outputs(ablator: Ablator) -> Attribution | None:
    """AOTAutograd's function of a graph that gives one tensor in two places, of which autograd takes the mark for both.

    What is marked as without a gradient in one place (``detach``) is so in the other.
    """
    repeated = any(frame.repeats_outputs for frame in ablator.trial.ledger.frames)
    if not repeated or not ablator.is_repaired_by(DistinctOutputs()):
        return None
    place, details = facts().aot_autograd.autograd_function, DetailsJson(kind="gradient")
    culprit = Culprit.from_function(stages.FUNCTIONALIZATION, place, "repeated output", necessary=True, details=details)
    return Attribution(culprit)


def _means_the_same(call: _Crossing) -> bool:
    pairs = list(call.pair_outputs())
    return bool(pairs) and all(call.measure(pair) is None for pair in pairs)


# The joint graph cut into a forward and a backward graph.


def _iter_cuts(ledger: Ledger) -> Iterator[tuple[Frame, Snapshot, Snapshot, Snapshot]]:
    for frame in ledger.frames:
        joint = frame.find_record(stages.JOINT_GRAPH, "joint")
        parts = [frame.find_record(stages.POST_GRAD, direction) for direction in ("forward", "backward")]
        cut = [record.snapshots for record in (joint, *parts) if record is not None and record.snapshots]
        if len(cut) == 3:
            yield frame, cut[0][-1], cut[1][0], cut[2][0]


def _compare_parts(divergence: Divergence) -> Iterator[ways.Sides[str]]:
    for frame, *snapshots in _iter_cuts(divergence.trial.ledger):
        sides = None if any(map(list_random_calls, snapshots)) else _run_parts(frame, *snapshots)
        yield from [] if sides is None else [sides]


def _run_parts(frame: Frame, whole: Snapshot, first: Snapshot, second: Snapshot) -> ways.Sides[str] | None:
    joint = frame.find_record(stages.JOINT_GRAPH, "joint")
    inputs = find_inputs(frame, joint) if joint is not None else None
    if inputs is None:
        return None
    named = dict(zip((str(node.target) for node in list_placeholders(whole)), inputs, strict=True))
    given = [named.get(str(node.target)) for node in list_placeholders(first)]
    if any(value is None for value in given):
        return None
    once, before = replay_graph(whole, inputs, double=True), replay_graph(first, given, double=True)
    if once.error is not None or before.error is not None:
        return None
    results = len(once.outputs) - len(second.results)
    saved = before.outputs[results:]
    ordered = _order_inputs(saved, list_placeholders(second), named)
    after = replay_graph(second, ordered, double=True) if ordered is not None else None
    if after is None or after.error is not None:
        return None
    parted = [*before.outputs[:results], *after.outputs]
    names = [f"output {i}" if i < results else f"gradient {i - results}" for i in range(len(parted))]
    pairs = [ways.Pair(*step) for step in zip(names, once.outputs, parted, strict=True)]

    def word(_: ways.PartedStep[str]) -> Found:
        steps = {pair.at: relative_change(pair.left, pair.right) for pair in pairs}
        # The values that backward takes for those of the joint graph, and gets others for.
        truths, tensors = compute_values(whole, inputs), [value for value in saved if isinstance(value, torch.Tensor)]
        wanted = [
            node.name
            for node in list_placeholders(second)
            if not is_tangent(node) and isinstance(node.meta.get("val"), torch.Tensor)
        ]
        pairs_saved = ((name, value) for name, value in zip(wanted, tensors, strict=False) if name in truths)
        wrong = [name for name, value in pairs_saved if relative_change(truths[name], value) > SEMANTIC_STEP]
        differs = [name for name, step in steps.items() if step > SEMANTIC_STEP]
        details: DetailsJson = {"kind": "values", "differs": differs, "saved": wrong}
        return _word(details, nodes=tuple(wrong), step=max(steps.values()))

    return ways.Sides(ways.walk_pairs(pairs), word, ways.measure_values)


def _word(details: DetailsJson, nodes: tuple[str, ...] = (), step: float | None = None) -> Found:
    """The partitioner in use; without it, the plainest one, where this torch lets another take its place."""
    name, function = describe_partitioner()
    culprit = Culprit(stages.PARTITION, None, name, name, nodes, *find_source(function), step=step, details=details)
    culprit, plain = replace(culprit, confidence="low"), make_plain_partitioning()
    return Found(culprit, InductorSettings(plain, "AOTAutograd's default partition") if plain is not None else None)


def _find_draws(divergence: Divergence) -> Iterator[Found]:
    if divergence.experiments.runs.promises_eager_numbers:
        for _, whole, *parts in _iter_cuts(divergence.trial.ledger):
            wanted = Counter(list_random_calls(whole))
            drawn = Counter(call for snapshot in parts for call in list_random_calls(snapshot))
            if wanted != drawn:
                yield _word({"kind": "numbers", "joint graph draws": dict(wanted), "its parts draw": dict(drawn)})


def _prove_draws(ablator: Ablator, found: Found) -> Attribution | None:
    """The partitioner, proved by a compile in which it repeats no draw, else by one with another in its place."""
    entries = make_partitioning_without_repeated_draws()
    if entries is not None and ablator.attempt_under(InductorSettings(entries, "no random call in both parts"))[1]:
        return Attribution(replace(found.culprit, necessary=True, confidence="high"))
    return ways.prove_without(ablator, found)


def _find_saved(divergence: Divergence) -> Iterator[Found]:
    """The inputs that are saved for the backward graph in place of what eager mode saves of them."""
    for _, whole, _, second in _iter_cuts(divergence.trial.ledger):
        given = {str(node.target) for node in list_placeholders(whole)}
        saved = [str(node.target) for node in list_placeholders(second) if not is_tangent(node)]
        if inputs := [name for name in saved if name in given]:
            yield _word({"kind": "saved", "saved": inputs})
            return


_OF_VALUES = attrgetter("is_of_values")
SAVED = ways.Way(
    "what the backward graph is given, which is written to in between",
    _find_saved,
    ways.prove_without,
    lambda seen: seen.raises(facts().errors.written_since),
)
DRAWS = ways.Way("the random numbers of the joint graph, and of its parts", _find_draws, _prove_draws, _OF_VALUES)
PARTS = ways.Way("the joint graph, and its parts", _compare_parts, ways.prove_without, _OF_VALUES)


def _order_inputs(saved: Sequence[Any], placeholders: Sequence[fx.Node], named: dict[str, Any]) -> list[Any] | None:
    """Inputs of the backward graph as the runtime hands them on: sizes and tensors by position, tangents by name."""
    tensors = iter([value for value in saved if isinstance(value, torch.Tensor)])
    sizes = iter([value for value in saved if not isinstance(value, torch.Tensor)])
    given = []
    for node in placeholders:
        if is_tangent(node):
            value = named.get(str(node.target))
        elif isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            value = next(sizes, None)
        else:
            value = next(tensors, None)
        if value is None:
            return None
        given.append(value)
    return given


# Fake tensors: the dtype, shape and strides that a graph records of its values, beside the values.


_Recorded = tuple[fx.Node, bool]  # a node, and whether it was given to the passes


def _compare_metadata(divergence: Divergence) -> Iterator[ways.Sides[_Recorded]]:
    for frame in divergence.trial.ledger.frames:
        for record in frame.records:
            inputs = find_inputs(frame, record) if record.stage != stages.PRE_GRAD and record.snapshots else None
            if inputs is not None and _are_of_one_call(list_placeholders(record.snapshots[0]), inputs):
                pairs = ways.walk_pairs(_pair_metadata(record, inputs))
                yield ways.Sides(pairs, partial(_word_metadata, record), _measure_metadata)


def _pair_metadata(record: GraphRecord, inputs: Sequence[Any]) -> Iterator[ways.Pair[_Recorded]]:
    """The metadata of each value, real and recorded, where both are known: before the passes, then behind them."""
    # Strides are propagated anew before lowering: what passes write there is not read.
    for snapshot, given in ((record.snapshots[0], True), (record.snapshots[-1], False)):
        run = run_eagerly(snapshot, inputs, double=False)
        for node in snapshot.graph.nodes:
            said, value = node.meta.get("val"), run.values.get(node.name)
            if node.op == "call_function" and is_strided(said) and is_strided(value):
                yield ways.Pair((node, given), *_describe_metadata(value, said, strides=given))


def _measure_metadata(pair: ways.Pair[ways.At]) -> ways.PartedStep[ways.At] | None:
    apart = pair.left != pair.right
    return ways.PartedStep(pair, "metadata", expected=str(pair.left), got=str(pair.right)) if apart else None


def _word_metadata(record: GraphRecord, parting: ways.PartedStep[_Recorded]) -> Found | None:
    """The operator in the first graph of the passes; later on, the rewrite after which the node was there."""
    node, given = parting.pair.at
    details: DetailsJson = {"kind": "metadata", "expected": parting.expected, "got": parting.got, "node": node.name}
    if given:
        function = find_fake_function(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
        culprit = Culprit.from_operator(stages.FAKE_TENSOR, str(node.target), find_source(function), details=details)
        culprit = replace(culprit, nodes=(node.name,), site=find_location([node]), confidence="low")
        without = MetadataFromKernel((str(node.target),))
        return Found(culprit, without) if record.stage == stages.JOINT_GRAPH else None
    for rewrite in record.rewrites:
        before, after = (
            {copied.name: copied.target for copied in record.snapshots[index].graph.nodes}
            for index in (rewrite.before, rewrite.after)
        )
        if after.get(node.name) == node.target and before.get(node.name) != node.target:
            return Found(Culprit.from_label(rewrite.label, confidence="low", details=details, nodes=(node.name,)))
    return None


def _describe_metadata(value: torch.Tensor, said: torch.Tensor, *, strides: bool) -> tuple[str, str]:
    """Dtype, shape and the strides that are followed, of a value and as ``said``: what is not known there is alike."""
    shape: list[int | None] = [*value.shape]
    steps: list[int | None] = [*value.stride()]
    known, stepped = (list(map(get_hint, sizes)) for sizes in (said.shape, said.stride()))
    if said.dim() == value.dim():
        known, stepped = (
            [real if hint is None else hint for real, hint in zip(reals, hints, strict=True)]
            for reals, hints in ((shape, known), (steps, stepped))
        )

    def write(dtype: torch.dtype, sizes: Sequence[int | None], steps: Sequence[int | None]) -> str:
        followed = [step for size, step in zip(sizes, steps, strict=True) if size != 1] if 0 not in sizes else []
        return f"{dtype} {tuple(sizes)}" + (f" strides {tuple(followed)}" if strides else "")

    return write(value.dtype, shape, steps), write(said.dtype, known, stepped)


def _are_of_one_call(placeholders: Sequence[fx.Node], inputs: Sequence[Any]) -> bool:
    """Return whether inputs have the sizes that symbols had where the graph was traced: a later call has others."""
    pairs = ((node.meta.get("val"), value) for node, value in zip(placeholders, inputs, strict=False))
    return all(
        all(map(may_be, traced.shape, value.shape))
        for traced, value in pairs
        if is_strided(traced) and is_strided(value)
    )


def _compare_tangents(divergence: Divergence) -> Iterator[ways.Sides[str]]:
    """What the backward graph got of autograd, and what it was traced for: its kernels read by the traced strides."""
    for captured in ways.iter_captured(divergence.trial.ledger, stage=stages.POST_GRAD, direction="backward"):
        placeholders = list_placeholders(captured.record.snapshots[0])
        if not _are_of_one_call(placeholders, captured.inputs):
            continue
        pairs = [
            ways.Pair(str(node.target), *_describe_metadata(value, traced, strides=True))
            for node, value in zip(placeholders, captured.inputs, strict=True)
            if is_tangent(node) and is_strided(value) and is_strided(traced := node.meta.get("val"))
        ]
        yield ways.Sides(ways.walk_pairs(pairs), _word_tangent, _measure_metadata)


def _word_tangent(parting: ways.PartedStep[str]) -> Found:
    place, nodes = facts().aot_autograd.tangent_copy.place, (parting.pair.at,)
    details: DetailsJson = {"kind": "metadata", "expected": parting.got, "got": parting.expected}
    return Found(Culprit.from_function(stages.FUNCTIONALIZATION, place, "tangent", nodes=nodes, details=details))


TANGENTS = ways.Way(
    "tangents, and what the backward graph was traced for",
    _compare_tangents,
    shows=lambda seen: seen.is_of_values or seen.verdict in ERRORS,
)
_METADATA = (Verdict.METADATA, *ERRORS)
METADATA = ways.Way(
    "values, and what a graph records of them",
    _compare_metadata,
    shows=lambda seen: seen.is_of_values or seen.verdict in _METADATA,
    most=None,
)
