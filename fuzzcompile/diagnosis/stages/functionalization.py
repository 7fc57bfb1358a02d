"""Faults of AOTAutograd: writes and views made functional, its analysis, tangents and composite operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import Backend, TracingSettings
from fuzzcompile.compiler.functional_run import SEEDS, NodeRun, find_lossy_views, run_eagerly, run_functionalized
from fuzzcompile.compiler.graph_breaks import find_call_name
from fuzzcompile.compiler.graph_replay import list_drawing_nodes
from fuzzcompile.compiler.operators.decompositions import format_operator
from fuzzcompile.compiler.operators.operator_application import OperatorOutcome
from fuzzcompile.compiler.operators.operator_paths import ComparedCall, compare_paths
from fuzzcompile.compiler.watch import aot_autograd
from fuzzcompile.compiler.watch.aot_autograd import AS_THEY_COME
from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs, find_shared_memory
from fuzzcompile.diagnosis.operators.operator_faults import Kind, find_difference, find_worst_element, is_far_from
from fuzzcompile.diagnosis.operators.operator_suspects import (
    doubt,
    list_aten_suspects,
    list_lost_check_suspects,
    list_operator_suspects,
    make_operator_culprit,
)
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect, attempt_backend, prove_by_break
from fuzzcompile.model import stages
from fuzzcompile.model.stages import FUNCTIONALIZATION, JOINT_GRAPH, PRE_GRAD
from fuzzcompile.model.thresholds import OTHER_NUMBERS, SEMANTIC_STEP
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.tensors import list_significant_strides

# Faults of AOTAutograd around its graphs: its analysis of inputs and outputs, its copies of tangents.


def is_tangent(culprit: Culprit) -> bool:
    """Return whether a culprit is a copy of a tangent."""
    return culprit.details.get("kind") == "tangent"


def find_changed_tangents(divergence: Divergence) -> list[Culprit]:
    """The copy of a tangent into the layout of an output that cannot hold it, once."""
    module, function = aot_autograd.PLACE
    return [
        Culprit(
            stages.FUNCTIONALIZATION,
            None,
            function,
            "tangent",
            source=f"{module.replace('.', '/')}.py",
            line=tangent.line,
            step=relative_change(tangent.before, tangent.after),
            details={"kind": "tangent", "shape": list(tangent.shape), "strides": list(tangent.strides)},
        )
        for tangent in divergence.trial.ledger.changed_tangents[:1]
    ]


def find_contradicted_analysis(divergence: Divergence) -> list[Culprit]:
    """The analysis of inputs and outputs, where a run of dynamo's graph contradicts it."""
    for frame in divergence.trial.ledger.frames:
        denied = _list_contradictions(frame, divergence)
        if denied and frame.analysis is not None:
            return [
                Culprit(
                    stages.FUNCTIONALIZATION,
                    None,
                    aot_autograd.FUNCTION,
                    "analysis",
                    source=aot_autograd.SOURCE,
                    line=frame.analysis.line,
                    details={"kind": "analysis", "a run shows": denied},
                )
            ]
    return []


def _list_contradictions(frame: Frame, divergence: Divergence) -> list[str]:
    record = frame.find_record(stages.PRE_GRAD)
    inputs = find_inputs(frame, record) if record is not None and record.snapshots else None
    if record is None or inputs is None or frame.analysis is None:
        return []
    divergence.count.replays += 1
    grad = divergence.experiments.case.differentiates
    try:
        return list(aot_autograd.find_contradictions(frame.analysis, record.snapshots[-1], inputs, grad=grad))
    except Exception:  # of the program: a graph that does not run by itself contradicts nothing
        return []


# Operators that take another path in a compiled program than in eager mode, and give something else on it.


def find_other_paths(divergence: Divergence) -> list[Culprit]:
    """The first call of each frame whose traced path gives what its eager path does not, on the same arguments.

    Nothing is compiled. What differs is what the verdict is about: strides and dtypes of a result, memory that it
    shares, or values.
    """
    culprits = (_find_other_path(frame, divergence) for frame in divergence.trial.ledger.frames)
    return [culprit for culprit in culprits if culprit is not None]


def _find_other_path(frame: Frame, divergence: Divergence) -> Culprit | None:
    record = frame.find_record(PRE_GRAD)
    inputs = find_inputs(frame, record) if record is not None and record.snapshots else None
    if record is None or inputs is None:
        return None
    differing: list[tuple[ComparedCall, _Difference]] = []
    ordinals: Counter[tuple[str, str | None]] = Counter()
    runs = divergence.experiments.runs
    others_allowed = runs.draws and not runs.promises_eager_numbers  # other random numbers than eager's

    def judge(call: ComparedCall) -> None:
        if differing or (call.draws and others_allowed):
            return
        ordinals[_name_call(call.node), find_location([call.node])] += 1
        difference = _compare_paths(call, divergence.verdict)
        if difference is not None:
            differing.append((call, difference))

    divergence.count.replays += 1
    grad = frame.find_record(JOINT_GRAPH, "joint") is not None
    compare_paths(record.snapshots[-1], inputs, judge, grad=grad)
    if not differing:
        return None
    call, difference = differing[0]
    return _make_composite_culprit(call, difference, ordinals[_name_call(call.node), find_location([call.node])])


_Difference = tuple[Kind, str, str, float | None]


def _compare_paths(call: ComparedCall, verdict: Verdict) -> _Difference | None:
    """Return the difference between the two paths: its kind, the eager value, the traced value and its size."""
    eager, traced = call.eager, call.traced
    if eager.error is not None or len(eager.results) != len(traced.results):
        return None
    for kind, differs in _iter_metadata_differences(eager, traced, verdict):
        if differs is not None:
            return kind, *differs, None
    if verdict is Verdict.METADATA or not rounding.largest_change(eager.results, traced.results):
        return None
    if call.draws:
        return _compare_draws(eager, traced)
    exact = call.run_in_float64()
    known = all(outcome.error is None for outcome in exact)
    step = rounding.largest_change(exact[0].results, exact[1].results) if known else 0.0
    if step > SEMANTIC_STEP:
        return "values", *find_worst_element(*exact), step
    if is_far_from(eager, traced, exact[0] if known else None):
        return "values", *find_worst_element(eager, traced), rounding.largest_change(eager.results, traced.results)
    return None


def _compare_draws(eager: OperatorOutcome, traced: OperatorOutcome) -> _Difference | None:
    """Other random numbers from one state, or as many but another state behind them, which moves all that follow."""
    step = rounding.largest_change(eager.results[:-1], traced.results[:-1])
    if step > OTHER_NUMBERS:
        return "numbers", *find_worst_element(eager, traced), step
    if torch.equal(eager.results[-1], traced.results[-1]):
        return None
    return "numbers", "the state of the generator after it", "another state", None


def _iter_metadata_differences(
    eager: OperatorOutcome, traced: OperatorOutcome, verdict: Verdict
) -> Iterator[tuple[Kind, tuple[str, str] | None]]:
    kinds: tuple[Kind, ...] = ("shape", "dtype", "stride") if verdict is Verdict.METADATA else ("shape", "dtype")
    for kind in kinds:
        yield kind, find_difference(kind, eager, traced)
    if verdict is Verdict.ALIASING:
        yield "alias", find_difference("alias", eager, traced)


def _make_composite_culprit(call: ComparedCall, difference: _Difference, ordinal: int) -> Culprit:
    kind, expected, got, step = difference
    name, line = _name_call(call.node), find_location([call.node])
    return Culprit(
        FUNCTIONALIZATION,
        None,
        name,
        name.rpartition(".")[2],
        nodes=(call.node.name,),
        site=None if line is None else f"{line} #{ordinal}",
        step=step,
        details={
            "kind": kind,
            "way": "composite",
            "expected": expected,
            "got": got,
            "composite": {
                "call": name,
                "eager": call.list_eager_operators(),
                "compiled": call.list_traced_operators(),
            },
        },
    )


def _name_call(node: fx.Node) -> str:
    return find_call_name(node) or str(getattr(node.target, "__name__", node.target))


class Functionalization(Stage):
    """An operator that gives another value once in-place writes are made functional.

    Dynamo's graph is run as it is and functionally, on the same inputs, in float64; outputs and inputs afterwards are
    compared, and where these differ, the values of its nodes.
    """

    name = stages.FUNCTIONALIZATION

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The write or view that another value shows, calls on another path, copies of tangents, undeclared writes."""
        undeclared = [suspect for suspect in divergence.once(list_operator_suspects) if suspect.stage == self.name]
        if divergence.verdict is Verdict.ACCEPTS_INVALID:
            return [lost for lost in divergence.once(list_lost_check_suspects) if lost.stage == self.name]
        if not divergence.is_of_values and divergence.verdict not in (Verdict.METADATA, Verdict.ALIASING):
            return undeclared
        culprit = divergence.once(_find_functionalized)
        first = [] if culprit is None else [culprit]
        shown = [*first, *divergence.once(find_other_paths), *divergence.once(find_changed_tangents)]
        shown += divergence.once(find_contradicted_analysis)
        return [*map(doubt, shown), *undeclared, *list_aten_suspects(divergence, self.name)]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Shown by a compile that ends behind this stage, proved by one that leaves the call to eager mode."""
        # What a kernel's layouts explain was tried before.
        shown = [self.culprit(s) for s in suspects if isinstance(s.finding, Culprit) and not _is_kernel(s.finding)]
        if not shown:
            return None
        for culprit in filter(is_tangent, shown):
            if ablator.attempt_under(TracingSettings(AS_THEY_COME))[1]:
                return Attribution(replace(culprit, necessary=True, confidence="high"))
        if attempt_backend(ablator, Backend("aot_eager")):
            return None
        proved = (prove_by_break(ablator, culprit) for culprit in shown)
        return next(filter(None, proved), Attribution(replace(shown[0], confidence="low")))

    def culprit(self, suspect: Suspect) -> Culprit:
        """The operator that writes, or the copy of a tangent."""
        return make_operator_culprit(suspect)

    def tracing_settings(self, culprit: Culprit) -> Mapping[str, object]:
        """Tangents that stay in the layout in which they come."""
        return AS_THEY_COME if is_tangent(culprit) else {}


def _is_kernel(culprit: Culprit) -> bool:
    return "aten_kernel" in culprit.details


def _find_functionalized(divergence: Divergence) -> Culprit | None:
    for frame in divergence.trial.ledger.frames:
        record = frame.find_record(stages.PRE_GRAD)
        if record is None or not record.snapshots:
            continue
        for number in range(CAPTURED_CALLS):
            # In a later call inputs may overlap that did not when the graph was made.
            inputs = find_inputs(frame, record, number)
            culprit = _compare_functionalized(record, inputs, divergence.count) if inputs is not None else None
            if culprit is not None:
                return culprit
    return None


def _compare_functionalized(record: GraphRecord, inputs: Sequence[Any], count: ReplayCount) -> Culprit | None:
    snapshot = record.snapshots[-1]
    for seed in SEEDS if list_drawing_nodes(snapshot) else SEEDS[:1]:
        for double in (True, False):
            plain = run_eagerly(snapshot, inputs, double=double, seed=seed)
            lazily = run_functionalized(snapshot, inputs, double=double, seed=seed)
            count.replays += 2
            if lazily is None:
                return None
            if plain.error is None and lazily.error is None:
                break
        else:
            return None
        difference = _find_difference(plain, lazily)
        if difference is None:
            continue
        count.replays += 1
        read = run_functionalized(snapshot, inputs, double=double, seed=seed, by_node=True)
        node = _find_differing_node(snapshot.graph, plain, read) if read is not None and read.error is None else None
        count.replays += 1
        through = _find_lossy_write(snapshot.graph, plain, find_lossy_views(snapshot, inputs))
        return _make_functional_culprit(snapshot.graph, node, plain, difference, through)
    return None


def _find_lossy_write(graph: fx.Graph, plain: NodeRun, lossy: Collection[str]) -> tuple[fx.Node, fx.Node] | None:
    """The first write through one of these views, and that view."""
    for node in graph.nodes:
        view = node.args[0] if node.args and _is_written(node, plain) else None
        while isinstance(view, fx.Node):
            if view.name in lossy:
                return node, view
            view = view.args[0] if view.args else None
    return None


def _find_difference(plain: NodeRun, functional: NodeRun) -> tuple[str, float | None] | None:
    """Return the first difference between the two runs: its name and its size."""
    named = [
        *((f"output {i}", a, b) for i, (a, b) in enumerate(zip(plain.outputs, functional.outputs, strict=False))),
        *((f"input {i}", a, b) for i, (a, b) in enumerate(zip(plain.inputs, functional.inputs, strict=False))),
    ]
    for name, value, functionally in named:
        step = _measure_change(value, functionally)
        if step > SEMANTIC_STEP:
            return name, step if math.isfinite(step) else None
    before, after = find_shared_memory(plain), find_shared_memory(functional)
    for name in before:
        if before[name] != after.get(name):
            # AOTAutograd regenerates views of inputs after the call: only memory that outputs share is its graph's.
            if any(owner.startswith("input") for owner in (*before[name], *after.get(name, ()))):
                continue
            return name, None
    return None


def _measure_change(plain: object, functional: object) -> float:
    """The change, infinite where the dtype is another."""
    if isinstance(plain, torch.Tensor) and isinstance(functional, torch.Tensor) and plain.dtype != functional.dtype:
        return math.inf
    return relative_change(plain, functional) if isinstance(plain, torch.Tensor) else 0.0


def _find_differing_node(graph: fx.Graph, plain: NodeRun, functional: NodeRun) -> fx.Node | None:
    """The first node whose value differs or, if one before it has another layout, that one: it is read by memory."""
    laid_out: fx.Node | None = None
    for node in graph.nodes:
        value, functionally = plain.values.get(node.name), functional.values.get(node.name)
        if value is None or functionally is None:
            continue
        if _measure_change(value, functionally) > SEMANTIC_STEP:
            return laid_out or node
        if laid_out is None and list_significant_strides(value) != list_significant_strides(functionally):
            laid_out = node
    return laid_out


def _make_functional_culprit(
    graph: fx.Graph,
    node: fx.Node | None,
    plain: NodeRun,
    difference: tuple[str, float | None],
    through: tuple[fx.Node, fx.Node] | None,
) -> Culprit:
    """The write at fault or, where a view loses what is not in it, that view at the place of the write."""
    name, step = difference
    read = node
    if through is not None:
        node = through[0]
    elif node is None or not _is_written(node, plain):
        # What reads another value is not at fault, but the write before it; the last, if only late views differ.
        earlier = list(graph.nodes)[: list(graph.nodes).index(node)] if node is not None else list(graph.nodes)
        written = [earlier_node for earlier_node in earlier if _is_written(earlier_node, plain)]
        node = written[-1] if written else node
    named = node if through is None else through[1]
    operators = plain.operators.get(named.name, []) if named is not None else []
    operator = next((op for op in operators if _writes(op)), operators[-1] if operators else None)
    return Culprit.from_operator(
        stages.FUNCTIONALIZATION,
        format_operator(operator) if operator is not None else None,
        nodes=(node.name,) if node is not None else (),
        site=find_location([node]) if node is not None else None,
        step=step,
        confidence="low",
        details={
            "kind": "values" if step is not None else "alias",
            "differs": name,
            "read": read.name if read is not None else None,
            **({"written through": through[1].name} if through is not None else {}),
        },
    )


def _is_written(node: fx.Node, run: NodeRun) -> bool:
    return any(_writes(operator) for operator in run.operators.get(node.name, ()))


def _writes(operator: Any) -> bool:
    return bool(getattr(getattr(operator, "_schema", None), "is_mutable", False))
