"""Faults of AOTAutograd: writes and views made functional, its analysis, tangents and composite operators."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import TracingSettings
from fuzzcompile.compiler.functional_run import SEEDS, NodeRun, find_lossy_views, load_functional_tools, run_eagerly
from fuzzcompile.compiler.graph_breaks import find_call_name
from fuzzcompile.compiler.graph_replay import list_drawing_nodes
from fuzzcompile.compiler.operators.operator_paths import ComparedCall, compare_paths
from fuzzcompile.compiler.watch import aot_autograd
from fuzzcompile.compiler.watch.aot_autograd import AS_THEY_COME
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.diagnosis.attribution.ablation import Divergence
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_shared_memory
from fuzzcompile.diagnosis.operators.operator_faults import Kind, find_difference, find_worst_element, measure_outcomes
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.stages.stage import prove_at_call
from fuzzcompile.diagnosis.stages.ways import (
    CapturedGraphs,
    Found,
    Pair,
    PartedStep,
    SideBySide,
    Sides,
    Visit,
    Way,
    iter_captured,
    measure_step,
    measure_values,
    prove_without,
    walk_pairs,
)
from fuzzcompile.model.stages import FUNCTIONALIZATION, JOINT_GRAPH
from fuzzcompile.model.thresholds import OTHER_NUMBERS, SEMANTIC_STEP
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.tensors import list_significant_strides

# Faults of AOTAutograd around its graphs: its analysis of inputs and outputs, its copies of tangents.


def _find_tangents(divergence: Divergence) -> Iterator[Found]:
    module, function = aot_autograd.PLACE
    for tangent in divergence.trial.ledger.changed_tangents:
        culprit = Culprit(
            FUNCTIONALIZATION,
            None,
            function,
            "tangent",
            source=f"{module.replace('.', '/')}.py",
            line=tangent.line,
            step=rounding.relative_change(tangent.before, tangent.after),
            details={"kind": "tangent", "shape": list(tangent.shape), "strides": list(tangent.strides)},
        )
        yield Found(culprit, TracingSettings(AS_THEY_COME))


def _find_contradictions(divergence: Divergence) -> Iterator[Found]:
    grad = divergence.experiments.case.differentiates
    for frame, record, inputs in iter_captured(divergence.trial.ledger):
        if frame.analysis is None:
            continue
        divergence.count.replays += 1
        try:
            shown = list(aot_autograd.find_contradictions(frame.analysis, record.snapshots[-1], inputs, grad=grad))
        except Exception:  # of the program: a graph that does not run by itself contradicts nothing
            continue
        if shown:
            yield Found(
                Culprit(
                    FUNCTIONALIZATION,
                    None,
                    aot_autograd.FUNCTION,
                    "analysis",
                    source=aot_autograd.SOURCE,
                    line=frame.analysis.line,
                    details={"kind": "analysis", "a run shows": shown},
                )
            )


# Operators that take another path in a compiled program than in eager mode, and give something else on it.


def _compare_composites(divergence: Divergence) -> Iterator[Sides[ComparedCall]]:
    for captured in iter_captured(divergence.trial.ledger):
        yield _compare_composites_of(captured, divergence)


def _compare_composites_of(captured: CapturedGraphs, divergence: Divergence) -> Sides[ComparedCall]:
    ordinals: Counter[tuple[str, str | None]] = Counter()
    runs = divergence.experiments.runs
    others_allowed = runs.draws and not runs.promises_eager_numbers  # other random numbers than eager's
    grad = captured.frame.find_record(JOINT_GRAPH, "joint") is not None

    def walk(visit: Visit[ComparedCall]) -> None:
        parted = False

        def judge(call: ComparedCall) -> None:
            nonlocal parted
            if not parted and not (call.draws and others_allowed):
                ordinals[_name_call(call.node), find_location([call.node])] += 1
                parted = visit(Pair(call, call.eager, call.traced))

        divergence.count.replays += 1
        compare_paths(captured.record.snapshots[-1], captured.inputs, judge, grad=grad)

    measure = functools.partial(_measure_paths, divergence.verdict)
    return Sides(walk, functools.partial(_word_composite, ordinals), measure)


def _measure_paths(verdict: Verdict, pair: Pair[ComparedCall]) -> PartedStep[ComparedCall] | None:
    """Tell two paths that differ in what the verdict is about: strides, dtypes, shared memory, or values."""
    call, eager, traced = pair.at, pair.at.eager, pair.at.traced
    if eager.error is not None or len(eager.results) != len(traced.results):
        return None
    kinds: list[Kind] = ["shape", "dtype"]
    kinds += ["stride"] if verdict is Verdict.METADATA else ["alias"] if verdict is Verdict.ALIASING else []
    for kind in kinds:
        if (differs := find_difference(kind, eager, traced)) is not None:
            return PartedStep(pair, kind, None, *differs)
    if verdict is Verdict.METADATA or not rounding.largest_change(eager.results, traced.results):
        return None
    if call.draws:
        # Other random numbers from one state, or another state behind them, which moves all that follow.
        step = rounding.largest_change(eager.results[:-1], traced.results[:-1])
        if step > OTHER_NUMBERS:
            return PartedStep(pair, "numbers", step, *find_worst_element(eager, traced))
        same = torch.equal(eager.results[-1], traced.results[-1])
        said = "the state of the generator after it", "another state"
        return None if same else PartedStep(pair, "numbers", None, *said)
    exact = call.run_in_float64()
    return measure_outcomes(pair, eager, traced, exact if all(run.error is None for run in exact) else None)


def _word_composite(ordinals: Counter[tuple[str, str | None]], parting: PartedStep[ComparedCall]) -> Found:
    call = parting.pair.at
    name, line = _name_call(call.node), find_location([call.node])
    operators = {"eager": call.list_eager_operators(), "compiled": call.list_traced_operators()}
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
                "composite": {"call": name, "eager": operators["eager"], "compiled": operators["compiled"]},
            },
        )
    )


def _name_call(node: fx.Node) -> str:
    return find_call_name(node) or str(getattr(node.target, "__name__", node.target))


# Dynamo's graph as it is, and functionally, on the same inputs: what it gives back and leaves.


def _compare_functional(divergence: Divergence) -> Iterator[Sides[str]]:
    # In a later call inputs may overlap that did not when the graph was made.
    for _, record, inputs in iter_captured(divergence.trial.ledger, calls=CAPTURED_CALLS):
        yield from _compare_functional_runs(record.snapshots[-1], inputs, divergence.count)


def _compare_functional_runs(snapshot: Snapshot, inputs: Sequence[Any], count: ReplayCount) -> Iterator[Sides[str]]:
    tools = load_functional_tools()
    for seed in () if tools is None else SEEDS if list_drawing_nodes(snapshot) else SEEDS[:1]:
        for double in (True, False):
            run = functools.partial(run_eagerly, snapshot, inputs, double=double, seed=seed)
            plain, functional = run(), run(tools=tools, by_node=False)
            count.replays += 2
            if plain.error is None and functional.error is None:
                break
        else:
            return

        def word(parting: PartedStep[str], plain: NodeRun = plain, run: Any = run) -> Found:
            count.replays += 2
            read = run(tools=tools)
            node = None if read.error else _find_differing_node(snapshot.graph, plain, read)
            through = _find_lossy_write(snapshot, inputs, plain)
            return Found(_make_functional_culprit(snapshot.graph, node, plain, parting, through))

        yield Sides(walk_pairs(_pair_results(plain, functional)), word, _measure_result)


def _pair_results(plain: NodeRun, functional: NodeRun) -> Iterator[Pair[str]]:
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


def _find_lossy_write(snapshot: Snapshot, inputs: Sequence[Any], plain: NodeRun) -> tuple[fx.Node, fx.Node] | None:
    """The first write through a view that loses what is not in it, and that view."""
    lossy = find_lossy_views(snapshot, inputs)
    for node in snapshot.graph.nodes:
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
    read: fx.Node | None,
    plain: NodeRun,
    difference: PartedStep[str],
    through: tuple[fx.Node, fx.Node] | None,
) -> Culprit:
    """The write at fault or, where a view loses what is not in it, that view at the place of the write."""
    node = read
    if through is not None:
        node = through[0]
    elif node is None or not _is_written(node, plain):
        # What reads another value is not at fault, but the write before it; the last, if only late views differ.
        nodes = list(graph.nodes)
        earlier = nodes[: nodes.index(node)] if node is not None else nodes
        node = next((each for each in reversed(earlier) if _is_written(each, plain)), node)
    named = node if through is None else through[1]
    operators = plain.operators.get(named.name, []) if named is not None else []
    operator = next((op for op in operators if _writes(op)), operators[-1] if operators else None)
    return Culprit.from_operator(
        FUNCTIONALIZATION,
        str(operator) if operator is not None else None,
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


TANGENTS = Way("tangents, and their copies", _find_tangents, prove_without)
FUNCTIONAL = Way("dynamo's graph, and the same without in-place writes", _compare_functional, prove_at_call)
COMPOSITES = Way("calls in eager mode, and as they are traced", _compare_composites, prove_at_call, most=4)
ANALYSIS = Way("AOTAutograd's analysis, and a run", _find_contradictions, prove_at_call)


class Functionalization(SideBySide):
    """AOTAutograd's graph without in-place writes, and its analysis, tangents and composite operators."""

    def tracing_settings(self, culprit: Culprit) -> Mapping[str, object]:
        """Tangents that stay in the layout in which they come."""
        return AS_THEY_COME if culprit.details.get("kind") == "tangent" else {}
