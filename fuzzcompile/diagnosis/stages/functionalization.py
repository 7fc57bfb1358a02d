"""Faults of AOTAutograd: writes and views made functional, its analysis, tangents and composite operators."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import TracingSettings
from fuzzcompile.compiler.functional_run import SEEDS, NodeRun, find_lossy_views, run_eagerly, run_functionalized
from fuzzcompile.compiler.graph_breaks import find_call_name
from fuzzcompile.compiler.graph_replay import list_drawing_nodes
from fuzzcompile.compiler.operators.decompositions import format_operator
from fuzzcompile.compiler.operators.operator_application import OperatorOutcome
from fuzzcompile.compiler.operators.operator_paths import ComparedCall, compare_paths
from fuzzcompile.compiler.watch import aot_autograd
from fuzzcompile.compiler.watch.aot_autograd import AS_THEY_COME
from fuzzcompile.compiler.watch.ledger import ChangedTangent, Frame, GraphRecord, Snapshot
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.diagnosis.attribution.ablation import Divergence
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs, find_shared_memory
from fuzzcompile.diagnosis.operators.operator_faults import Kind, find_difference, find_worst_element, find_wrong_values
from fuzzcompile.diagnosis.operators.operator_suspects import (
    list_aten_suspects,
    list_operator_suspects,
)
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages.stage import Suspect
from fuzzcompile.diagnosis.stages.ways import (
    Found,
    Pair,
    PartedStep,
    SideBySide,
    Sides,
    Visit,
    Way,
    measure_step,
    measure_values,
    prove_at_call,
    prove_without,
    walk_pairs,
)
from fuzzcompile.model import stages
from fuzzcompile.model.stages import FUNCTIONALIZATION, JOINT_GRAPH, PRE_GRAD
from fuzzcompile.model.thresholds import OTHER_NUMBERS, SEMANTIC_STEP
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.tensors import list_significant_strides

# Faults of AOTAutograd around its graphs: its analysis of inputs and outputs, its copies of tangents.


def _compare_tangents(divergence: Divergence) -> Iterator[Sides[ChangedTangent]]:
    """Tangents before and after AOTAutograd's copy into the layout of an output."""

    def word(parting: PartedStep[ChangedTangent]) -> Found:
        (module, function), tangent = aot_autograd.PLACE, parting.pair.at
        culprit = Culprit(
            stages.FUNCTIONALIZATION,
            None,
            function,
            "tangent",
            source=f"{module.replace('.', '/')}.py",
            line=tangent.line,
            step=relative_change(tangent.before, tangent.after),
            details={"kind": "tangent", "shape": list(tangent.shape), "strides": list(tangent.strides)},
        )
        return Found(culprit, TracingSettings(AS_THEY_COME))

    changed = divergence.trial.ledger.changed_tangents
    pairs = [Pair(tangent, tangent.before, tangent.after) for tangent in changed]
    yield Sides(walk_pairs(pairs), word, PartedStep)


def _compare_analysis(divergence: Divergence) -> Iterator[Sides[str]]:
    """What AOTAutograd's analysis says of inputs and outputs, and what a run of dynamo's graph shows."""
    for frame in divergence.trial.ledger.frames:
        denied = _list_contradictions(frame, divergence)
        if denied and frame.analysis is not None:
            culprit = Culprit(
                stages.FUNCTIONALIZATION,
                None,
                aot_autograd.FUNCTION,
                "analysis",
                source=aot_autograd.SOURCE,
                line=frame.analysis.line,
                details={"kind": "analysis", "a run shows": denied},
            )
            pairs = [Pair(said, said, None) for said in denied]
            yield Sides(walk_pairs(pairs), functools.partial(_word_as, Found(culprit)), PartedStep)


def _word_as(found: Found, _: PartedStep[str]) -> Found:
    return found


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


def _compare_composites(divergence: Divergence) -> Iterator[Sides[ComparedCall]]:
    """Each call of dynamo's graphs on its eager path, and on the path that AOTAutograd traces."""
    for frame in divergence.trial.ledger.frames:
        record = frame.find_record(PRE_GRAD)
        inputs = find_inputs(frame, record) if record is not None and record.snapshots else None
        if record is not None and inputs is not None:
            yield _compare_composites_of(
                record, inputs, frame.find_record(JOINT_GRAPH, "joint") is not None, divergence
            )


def _compare_composites_of(
    record: GraphRecord, inputs: Sequence[Any], grad: bool, divergence: Divergence
) -> Sides[ComparedCall]:
    ordinals: Counter[tuple[str, str | None]] = Counter()
    runs = divergence.experiments.runs
    others_allowed = runs.draws and not runs.promises_eager_numbers  # other random numbers than eager's

    def walk(visit: Visit[ComparedCall]) -> None:
        parted = False

        def judge(call: ComparedCall) -> None:
            nonlocal parted
            if not parted and not (call.draws and others_allowed):
                ordinals[_name_call(call.node), find_location([call.node])] += 1
                parted = visit(Pair(call, call.eager, call.traced))

        divergence.count.replays += 1
        compare_paths(record.snapshots[-1], inputs, judge, grad=grad)

    return Sides(
        walk, functools.partial(_word_composite, ordinals), functools.partial(_measure_paths, divergence.verdict)
    )


def _measure_paths(verdict: Verdict, pair: Pair[ComparedCall]) -> PartedStep[ComparedCall] | None:
    """Tell two paths that differ in what the verdict is about: strides, dtypes, shared memory, or values."""
    call = pair.at
    eager, traced = call.eager, call.traced
    if eager.error is not None or len(eager.results) != len(traced.results):
        return None
    for kind, differs in _iter_metadata_differences(eager, traced, verdict):
        if differs is not None:
            return PartedStep(pair, kind, None, *differs)
    if verdict is Verdict.METADATA or not rounding.largest_change(eager.results, traced.results):
        return None
    if call.draws:
        # Other random numbers from one state, or another state behind them, which moves all that follow.
        step = rounding.largest_change(eager.results[:-1], traced.results[:-1])
        if step > OTHER_NUMBERS:
            return PartedStep(pair, "numbers", step, *find_worst_element(eager, traced))
        same = torch.equal(eager.results[-1], traced.results[-1])
        return (
            None if same else PartedStep(pair, "numbers", None, "the state of the generator after it", "another state")
        )
    exact = call.run_in_float64()
    known = all(outcome.error is None for outcome in exact)
    wrong = find_wrong_values(eager, traced, exact if known else None)
    return None if wrong is None else PartedStep(pair, "values", wrong[2], *wrong[:2])


def _iter_metadata_differences(
    eager: OperatorOutcome, traced: OperatorOutcome, verdict: Verdict
) -> Iterator[tuple[Kind, tuple[str, str] | None]]:
    kinds: tuple[Kind, ...] = ("shape", "dtype", "stride") if verdict is Verdict.METADATA else ("shape", "dtype")
    for kind in kinds:
        yield kind, find_difference(kind, eager, traced)
    if verdict is Verdict.ALIASING:
        yield "alias", find_difference("alias", eager, traced)


def _word_composite(ordinals: Counter[tuple[str, str | None]], parting: PartedStep[ComparedCall]) -> Found:
    call = parting.pair.at
    name, line = _name_call(call.node), find_location([call.node])
    return Found(
        Culprit(
            FUNCTIONALIZATION,
            None,
            name,
            name.rpartition(".")[2],
            nodes=(call.node.name,),
            site=None if line is None else f"{line} #{ordinals[name, line]}",
            step=parting.step,
            details={
                "kind": parting.kind,
                "way": "composite",
                "expected": parting.expected,
                "got": parting.got,
                "composite": {
                    "call": name,
                    "eager": call.list_eager_operators(),
                    "compiled": call.list_traced_operators(),
                },
            },
        )
    )


def _name_call(node: fx.Node) -> str:
    return find_call_name(node) or str(getattr(node.target, "__name__", node.target))


def _compare_functional(divergence: Divergence) -> Iterator[Sides[str]]:
    """Dynamo's graph as it is, and functionally, on the same inputs in float64: what it gives back and leaves."""
    for frame in divergence.trial.ledger.frames:
        record = frame.find_record(stages.PRE_GRAD)
        for number in range(CAPTURED_CALLS) if record is not None and record.snapshots else ():
            # In a later call inputs may overlap that did not when the graph was made.
            inputs = find_inputs(frame, record, number) if record is not None else None
            if record is not None and inputs is not None:
                yield from _compare_functional_runs(record.snapshots[-1], inputs, divergence.count)


def _compare_functional_runs(snapshot: Snapshot, inputs: Sequence[Any], count: ReplayCount) -> Iterator[Sides[str]]:
    for seed in SEEDS if list_drawing_nodes(snapshot) else SEEDS[:1]:
        for double in (True, False):
            plain = run_eagerly(snapshot, inputs, double=double, seed=seed)
            lazily = run_functionalized(snapshot, inputs, double=double, seed=seed)
            count.replays += 2
            if lazily is None:
                return
            if plain.error is None and lazily.error is None:
                break
        else:
            return

        def word(
            parting: PartedStep[str], plain: NodeRun = plain, double: bool = double, seed: int = seed
        ) -> Found | None:
            count.replays += 2
            read = run_functionalized(snapshot, inputs, double=double, seed=seed, by_node=True)
            node = _find_differing_node(snapshot.graph, plain, read) if read is not None and not read.error else None
            through = _find_lossy_write(snapshot.graph, plain, find_lossy_views(snapshot, inputs))
            return Found(_make_functional_culprit(snapshot.graph, node, plain, parting, through))

        yield Sides(walk_pairs(_pair_results(plain, lazily)), word, _measure_result)


def _pair_results(plain: NodeRun, functional: NodeRun) -> Iterator[Pair[str]]:
    """Outputs and inputs by name, then the memory that outputs share."""
    for what, ours, theirs in (
        ("output", plain.outputs, functional.outputs),
        ("input", plain.inputs, functional.inputs),
    ):
        for number, (left, right) in enumerate(zip(ours, theirs, strict=False)):
            yield Pair(f"{what} {number}", left, right)
    before, after = find_shared_memory(plain), find_shared_memory(functional)
    for name in before:
        # AOTAutograd regenerates views of inputs after the call: only memory that outputs share is its graph's.
        if not any(owner.startswith("input") for owner in (*before[name], *after.get(name, ()))):
            yield Pair(name, before[name], after.get(name))


def _measure_result(pair: Pair[str]) -> PartedStep[str] | None:
    if isinstance(pair.left, tuple):  # names of what shares the memory
        return PartedStep(pair, "alias") if pair.left != pair.right else None
    return measure_values(pair)


def _find_lossy_write(graph: fx.Graph, plain: NodeRun, lossy: Collection[str]) -> tuple[fx.Node, fx.Node] | None:
    """The first write through one of these views, and that view."""
    for node in graph.nodes:
        view = node.args[0] if node.args and _is_written(node, plain) else None
        while isinstance(view, fx.Node):
            if view.name in lossy:
                return node, view
            view = view.args[0] if view.args else None
    return None


def _find_differing_node(graph: fx.Graph, plain: NodeRun, functional: NodeRun) -> fx.Node | None:
    """The first node whose value differs or, if one before it has another layout, that one: it is read by memory."""
    laid_out: fx.Node | None = None
    for node in graph.nodes:
        value, functionally = plain.values.get(node.name), functional.values.get(node.name)
        if value is None or functionally is None:
            continue
        if measure_step(value, functionally) > SEMANTIC_STEP:
            return laid_out or node
        if laid_out is None and list_significant_strides(value) != list_significant_strides(functionally):
            laid_out = node
    return laid_out


def _make_functional_culprit(
    graph: fx.Graph,
    node: fx.Node | None,
    plain: NodeRun,
    difference: PartedStep[str],
    through: tuple[fx.Node, fx.Node] | None,
) -> Culprit:
    """The write at fault or, where a view loses what is not in it, that view at the place of the write."""
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
        step=difference.step,
        confidence="low",
        details={
            "kind": "values" if difference.step is not None else "alias",
            "differs": difference.pair.at,
            "read": read.name if read is not None else None,
            **({"written through": through[1].name} if through is not None else {}),
        },
    )


def _is_written(node: fx.Node, run: NodeRun) -> bool:
    return any(_writes(operator) for operator in run.operators.get(node.name, ()))


def _writes(operator: Any) -> bool:
    return bool(getattr(getattr(operator, "_schema", None), "is_mutable", False))


TANGENTS = Way("tangents, and their copies", _compare_tangents, prove_without)
FUNCTIONAL = Way("dynamo's graph, and the same without in-place writes", _compare_functional, prove_at_call)
COMPOSITES = Way("calls in eager mode, and as they are traced", _compare_composites, prove_at_call, most=4)
ANALYSIS = Way("AOTAutograd's analysis, and a run", _compare_analysis, prove_at_call)


class Functionalization(SideBySide):
    """AOTAutograd's graph without in-place writes, and its analysis, tangents and composite operators."""

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """What parts, then writes that an operator does not declare, and kernels that are wrong on a layout."""
        if divergence.verdict is Verdict.ACCEPTS_INVALID:
            return super().suspects(divergence)
        undeclared = [suspect for suspect in divergence.once(list_operator_suspects) if suspect.stage == self.name]
        return [*super().suspects(divergence), *undeclared, *list_aten_suspects(divergence, self.name)]

    def tracing_settings(self, culprit: Culprit) -> Mapping[str, object]:
        """Tangents that stay in the layout in which they come."""
        return AS_THEY_COME if culprit.details.get("kind") == "tangent" else {}
