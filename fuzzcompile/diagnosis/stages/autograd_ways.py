"""Ways around AOTAutograd: dynamo's graphs, and what is made of them before they are lowered."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.compile_changes import GraphBreak, OutputsAsComputed, TracingSettings
from fuzzcompile.compiler.functional_run import SEEDS, NodeRun, find_lossy_views, load_functional_tools, run_eagerly
from fuzzcompile.compiler.graph_breaks import find_call_name, find_captured_calls
from fuzzcompile.compiler.graph_replay import list_drawing_nodes
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.operators.decompositions import get_operator_family, is_mutating, is_view, leaves_unwritten
from fuzzcompile.compiler.operators.operator_crossref import ComparedCall, compare_paths
from fuzzcompile.compiler.watch import aot_autograd
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.compiler.watch.unseen import note_early_end
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Divergence
from fuzzcompile.diagnosis.attribution.steps import find_shared_memory
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.stages import ways
from fuzzcompile.diagnosis.stages.operator_ways import (
    ANOTHER_STATE,
    Kind,
    find_difference,
    find_worst_element,
    measure_outcomes,
)
from fuzzcompile.diagnosis.stages.ways import Found, prove_at_call
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DECOMPOSITION, FUNCTIONALIZATION, JOINT_GRAPH, PRE_GRAD, find_file_stage
from fuzzcompile.model.thresholds import OTHER_NUMBERS, SEMANTIC_STEP
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.code_files import get_module_file
from fuzzcompile.run.tensors import is_wrapper, list_significant_strides

_MOST_WRITES = 4  # that are left to eager mode together
_RUN = "a run of dynamo's graph by itself"


# What AOTAutograd assumes of dynamo's graphs and of tangents, against what a run shows.


def _find_tangents(divergence: Divergence) -> Iterator[Found]:
    module, function = aot_autograd.PLACE
    for tangent in divergence.trial.ledger.changed_tangents:
        step, source = rounding.relative_change(tangent.before, tangent.after), get_module_file(module)
        culprit = Culprit(FUNCTIONALIZATION, None, function, "tangent", source=source, line=tangent.line, step=step)
        details: DetailsJson = {"kind": "tangent", "shape": list(tangent.shape), "strides": list(tangent.strides)}
        yield Found(replace(culprit, details=details), TracingSettings(facts().aot_autograd.tangent_copy.without))


def _find_contradictions(divergence: Divergence) -> Iterator[Found]:
    grad = divergence.experiments.case.differentiates
    for captured in ways.iter_captured(divergence.trial.ledger):
        said, given = captured.frame.analysis, (captured.record.snapshots[-1], captured.inputs)
        if said is None:
            continue
        traced = captured.frame.find_record(JOINT_GRAPH, "joint") is not None
        failure = divergence.trial.observation.failure
        raised = failure is not None and aot_autograd.is_raised_while_differentiating(failure.raised)
        differentiated = not grad or traced or raised
        shown: list[str] = []
        missed: list[str] = []
        with note_early_end(_RUN, "contradictions of AOTAutograd's analysis"):
            shown = list(aot_autograd.find_contradictions(said, *given, grad=grad))
            missed = [] if shown or differentiated else list(aot_autograd.find_undifferentiated(*given))
        if shown or missed:
            place = facts().aot_autograd.analysis if shown else facts().aot_autograd.differentiation
            details: DetailsJson = {"kind": "analysis", "a run shows": shown or missed}
            family = "analysis" if shown else "differentiation"
            culprit = Culprit.from_function(FUNCTIONALIZATION, place, family, details=details)
            calls = _list_writes(captured) or _list_made(captured)
            yield from map(Found, _place_at(culprit, calls) or [culprit])


def _place_at(culprit: Culprit, calls: Sequence[fx.Node]) -> list[Culprit]:
    """The culprit at each of several calls of dynamo's graph."""
    placed = ((node, find_location([node])) for node in calls)
    return [replace(culprit, nodes=(node.name,), site=None if at is None else f"{at} #1") for node, at in placed]


def _list_writes(captured: ways.CapturedGraphs) -> list[fx.Node]:
    snapshot = captured.record.snapshots[-1]
    run = run_eagerly(snapshot, captured.inputs, double=False)
    return [node for node in snapshot.graph.nodes if _is_written(node, run)]


def _prove_at_writes(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit, proved at its call; or where several writes lead to it, at all of them together."""
    proved = prove_at_call(ablator, found)
    if proved is not None:
        return proved
    writes = (node for captured in ways.iter_captured(ablator.trial.ledger) for node in _list_writes(captured))
    calls = {name: node.target for node in writes if (name := find_call_name(node)) is not None}
    if not 1 < len(calls) <= _MOST_WRITES or not ablator.is_repaired_by(GraphBreak(tuple(calls.items()))):
        return None
    if found.culprit.source is not None:  # functionalization's own function is called at none of them
        return Attribution(replace(found.culprit, necessary=True, confidence="high"))
    if "written through" in found.culprit.details:  # a view is at fault whichever of them it follows
        return Attribution(replace(found.culprit, necessary=True, confidence="low"))
    # Of one write among several it says that it may be one of those at fault.
    return Attribution(replace(found.culprit, confidence="low"))


# Outputs that are views: the runtime makes them anew from what it holds of the tensor that they are views of.


def _find_regenerated(divergence: Divergence) -> Iterator[Found]:
    kinds = (kind for frame in divergence.trial.ledger.frames if frame.analysis for kind, _ in frame.analysis.kinds)
    if any(kind.startswith("alias_of") for kind in kinds):
        copy = facts().aot_autograd.alias_copy
        culprit = Culprit.from_function(FUNCTIONALIZATION, copy.place, details={"kind": "regenerated"})
        yield Found(culprit, TracingSettings(copy.without))


def _prove_alone(ablator: Ablator, found: Found) -> Attribution | None:
    """Find a function without which the program is right; that it is called accuses nothing."""
    proved = ways.prove_in_turn(ablator, [found])
    if proved is None and ablator.is_of_values:
        proved = ways.prove_in_turn(ablator, [replace(_by_strides(found), without=OutputsAsComputed())])
    return proved


def _by_strides(found: Found) -> Found:
    """The function where views are wrong, too, that are not made as the program made them: strides or offset are."""
    return replace(found, culprit=replace(found.culprit, details={**found.culprit.details, "way": "as_strided"}))


def _prove_at_views(ablator: Ablator, found: Found) -> Attribution | None:
    """The function where both of its ways are wrong: eager mode makes the views, and it none."""
    views = [node for captured in ways.iter_captured(ablator.trial.ledger) for node in _list_regenerated(captured)]
    calls = {name: node.target for node in views if (name := find_call_name(node)) is not None}
    if not calls or not ablator.is_repaired_by(GraphBreak(tuple(calls.items()))):
        return None
    # An error may hide what is wrong besides.
    culprit = _by_strides(found).culprit if ablator.is_of_values else found.culprit
    return Attribution(replace(culprit, nodes=(views[0].name,), necessary=True, confidence="low"))


def _list_regenerated(captured: ways.CapturedGraphs) -> list[fx.Node]:
    """The calls of dynamo's graph whose results AOTAutograd takes for views of inputs or of other outputs."""
    said, results = captured.frame.analysis, captured.record.snapshots[-1].results
    kinds = [kind for kind, _ in said.kinds] if said is not None else []
    returned = [node for node, kind in zip(results, kinds, strict=False) if kind.startswith("alias_of")]
    return _list_makers(returned)


def _list_made(captured: ways.CapturedGraphs) -> list[fx.Node]:
    """The calls of dynamo's graph that make its outputs, and those before them, the nearest first."""
    made = _list_makers(reversed(pytree.tree_leaves(captured.record.snapshots[-1].results)))
    for node in made:  # it grows
        if len(made) >= _MOST_WRITES:
            break
        made += [each for each in _list_makers(node.all_input_nodes) if each not in made]
    return made[:_MOST_WRITES]


def _list_makers(returned: Iterable[object]) -> list[fx.Node]:
    made = dict.fromkeys(_find_maker(node) for node in returned if isinstance(node, fx.Node))
    return [node for node in made if node.op.startswith("call")]


def _find_maker(node: fx.Node) -> fx.Node:
    """The call of whose results a node takes one; a node of any other kind itself."""
    source = node.args[0] if node.target is operator.getitem else None
    several = isinstance(source, fx.Node) and isinstance(source.meta.get("example_value"), (tuple, list))
    return source if isinstance(source, fx.Node) and several else node


def prove_raising_copy(ablator: Ablator) -> Attribution | None:
    """The same function where it raised: without the operators that it fails behind, it may not be called."""
    failure = ablator.trial.observation.failure
    raised = {function for _, _, function in failure.raised} if failure is not None else set()
    found = list(_find_regenerated(ablator)) if facts().aot_autograd.alias_copy.function in raised else []
    return ways.prove_in_turn(ablator, found)


# What AOTAutograd itself raises, by the function that does.

_TRACED_BY = ("torch/_functorch/_aot_autograd/", "torch/_functorch/aot_autograd.py")


def _find_raising(divergence: Divergence) -> Iterator[Found]:
    """The function that raises, at each of the writes of the program: AOTAutograd's, or what stands in for a write."""
    failure = divergence.trial.observation.failure
    raised = [frame for frame in failure.raised if not frame[2].startswith("<")] if failure is not None else []
    named = (frame for frame in raised if frame[0].startswith(_TRACED_BY))
    computing = (frame for frame in raised if find_file_stage(frame[0]) == DECOMPOSITION)
    file, line, function = next(named, next(computing, (None, None, None)))
    if file is None or function is None:
        return
    details: DetailsJson = {"kind": "regenerated" if function == facts().aot_autograd.alias_copy.function else "raised"}
    culprit = Culprit(FUNCTIONALIZATION, None, function, function, source=file, line=line, details=details)
    for captured in ways.iter_captured(divergence.trial.ledger):
        yield from map(Found, _place_at(culprit, _list_writes(captured)))


def _find_joined(divergence: Divergence) -> Iterator[Found]:
    """Outputs of dynamo's graph from which autograd reaches others, as it does not where the graph is one function."""
    for captured in ways.iter_captured(divergence.trial.ledger):
        snapshot = captured.record.snapshots[-1]
        joined: list[tuple[int, int]] = []
        with note_early_end(_RUN, "outputs that autograd reaches from others"):
            joined = list(aot_autograd.find_joined_outputs(snapshot, captured.inputs))
        returned, place = pytree.tree_leaves(snapshot.results), find_definition(facts().aot_autograd.differentiation)
        for later, earlier in joined:
            node, shown = returned[earlier], f"autograd reaches output {earlier} from output {later}"
            details: DetailsJson = {"kind": "analysis", "a run shows": [shown]}
            culprit = Culprit(FUNCTIONALIZATION, None, "joined outputs", "differentiation", (node.name,), *place)
            yield Found(replace(culprit, site=find_location([node]), details=details))


def _find_effects_alone(divergence: Divergence) -> Iterator[Found]:
    """Calls of dynamo's graph for what they do besides: they call no operator, and nothing takes their results."""
    for captured in ways.iter_captured(divergence.trial.ledger):
        run = run_eagerly(captured.record.snapshots[-1], captured.inputs, double=False)
        for node in _list_called_besides(captured.record.snapshots[-1].graph, run):
            found = _word_lost_call(node)
            broken = find_captured_calls(divergence.trial.ledger, found.culprit.site, (node.name,))
            if broken:  # dynamo cannot break at what has no public name
                yield replace(found, without=GraphBreak(tuple(broken.items())))


def _list_called_besides(graph: fx.Graph, run: NodeRun) -> list[fx.Node]:
    calls = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in calls if not node.users and not run.operators.get(node.name)]


def _word_lost_call(node: fx.Node) -> Found:
    name, details = _name_call(node), DetailsJson(kind="lost", call=_name_call(node))
    family, site = name.rpartition(".")[2], find_location([node])
    return Found(Culprit(FUNCTIONALIZATION, None, name, family, (node.name,), site=site, details=details))


def _find_lost_draws(divergence: Divergence) -> Iterator[Found]:
    """Random calls of dynamo's graph that are not in the one of operators: what is drawn behind them is another."""
    for frame in divergence.trial.ledger.frames if divergence.experiments.runs.promises_eager_numbers else ():
        captured, traced = frame.find_record(PRE_GRAD), frame.find_record(JOINT_GRAPH)
        if not (captured and traced and captured.snapshots and traced.snapshots):
            continue
        calls, left = list_drawing_nodes(captured.snapshots[-1]), list_drawing_nodes(traced.snapshots[0])
        named = [(_name_call(node), node) for node in calls]
        families = Counter(name.rpartition(".")[2] for name, _ in named)
        missing = families - Counter(get_operator_family(str(node.target)) for node in left)
        for name, node in named if len(left) < len(calls) else ():
            family = name.rpartition(".")[2]
            if missing[family]:  # of calls alike, the first is taken for the missing one
                site, details = find_location([node]), DetailsJson(kind="lost", call=name)
                culprit = Culprit(FUNCTIONALIZATION, None, name, family, (node.name,), details=details)
                yield Found(replace(culprit, site=None if site is None else f"{site} #1"))
                break


# Operators that take another path in a compiled program than in eager mode, and give something else on it.


def _compare_composites(divergence: Divergence) -> Iterator[ways.Sides[ComparedCall]]:
    captured = ways.iter_captured(divergence.trial.ledger)
    yield from (_compare_composites_of(each, divergence) for each in captured)


def _compare_composites_of(captured: ways.CapturedGraphs, divergence: Divergence) -> ways.Sides[ComparedCall]:
    ordinals: Counter[tuple[str, str | None]] = Counter()
    runs = divergence.experiments.runs
    others_allowed = runs.draws and not runs.promises_eager_numbers  # other random numbers than eager's
    grad = captured.frame.find_record(JOINT_GRAPH, "joint") is not None

    def walk(visit: ways.Visit[ComparedCall]) -> None:
        parted = False

        def judge(call: ComparedCall) -> None:
            nonlocal parted
            if not parted and not (call.draws and others_allowed):
                ordinals[_name_call(call.node), find_location([call.node])] += 1
                parted = visit(ways.Pair(call, call.eager, call.traced))

        with captured.frame.autocast.enter():
            compare_paths(captured.record.snapshots[-1], captured.inputs, judge, grad=grad)

    measure = partial(_measure_paths, divergence.verdict)
    return ways.Sides(walk, partial(_word_composite, ordinals), measure)


def _measure_paths(verdict: Verdict, pair: ways.Pair[ComparedCall]) -> ways.PartedStep[ComparedCall] | None:
    """Tell two paths that differ in what the verdict is about: strides, dtypes, shared memory, or values."""
    call, eager, traced = pair.at, pair.at.eager, pair.at.traced
    if eager.error is not None or len(eager.results) != len(traced.results):
        return None
    kinds: list[Kind] = ["shape", "dtype"]
    kinds += ["stride"] if verdict is Verdict.METADATA else ["alias"] if verdict is Verdict.ALIASING else []
    for kind in kinds:
        if (differs := find_difference(kind, eager, traced)) is not None:
            return ways.PartedStep(pair, kind, None, *differs)
    if verdict is Verdict.METADATA or not rounding.largest_change(eager.results, traced.results):
        return None
    if call.draws:
        # Other random numbers from one state, or another state behind them, which moves all that follow.
        step = rounding.largest_change(eager.results[:-1], traced.results[:-1])
        if step > OTHER_NUMBERS:
            return ways.PartedStep(pair, "numbers", step, *find_worst_element(eager, traced))
        same = torch.equal(eager.results[-1], traced.results[-1])
        return None if same else ways.PartedStep(pair, "numbers", None, *ANOTHER_STATE)
    exact = call.run_in_float64()
    return measure_outcomes(pair, eager, traced, exact if all(run.error is None for run in exact) else None)


def _word_composite(ordinals: Counter[tuple[str, str | None]], parting: ways.PartedStep[ComparedCall]) -> Found:
    call = parting.pair.at
    name, line = _name_call(call.node), find_location([call.node])
    site = None if line is None else f"{line} #{ordinals[name, line]}"
    details: DetailsJson = {
        "kind": parting.kind,
        "way": "composite",
        "expected": parting.expected,
        "got": parting.got,
        "composite": {"call": name, "eager": call.list_eager_operators(), "compiled": call.traced_operators},
    }
    culprit = Culprit(FUNCTIONALIZATION, None, name, name.rpartition(".")[2], (call.node.name,), site=site)
    return Found(replace(culprit, step=parting.step, details=details))


def _name_call(node: fx.Node) -> str:
    return find_call_name(node) or str(getattr(node.target, "__name__", node.target))


# Dynamo's graph as it is, and functionally, on the same inputs: what it gives back and leaves.


def _compare_functional(divergence: Divergence) -> Iterator[ways.Sides[str]]:
    # In a later call inputs may overlap that did not when the graph was made.
    strided = divergence.verdict is Verdict.METADATA
    for captured in ways.iter_captured(divergence.trial.ledger, calls=CAPTURED_CALLS):
        draws = bool(list_drawing_nodes(captured.record.snapshots[-1]))
        for seed in SEEDS if draws else SEEDS[:1]:
            run_both = partial(_run_both, captured, seed, strided=strided)
            sides = run_both(double=True) or run_both(double=False)
            if sides is None:
                break  # what does not run under one seed runs under none
            yield sides
        # In another dtype, a kernel draws otherwise.
        if draws and divergence.experiments.runs.promises_eager_numbers:
            drawn = _run_both(captured, SEEDS[0], double=False, numbers=True)
            yield from [] if drawn is None else [drawn]


def _run_both(
    captured: ways.CapturedGraphs, seed: int, *, double: bool, strided: bool = False, numbers: bool = False
) -> ways.Sides[str] | None:
    """A graph as it is and functionally; ``numbers``: only how far both leave the generator of random numbers.

    ``strided``: results of other strides part as well.
    """
    tools = load_functional_tools()
    if tools is None:
        return None
    run = partial(run_eagerly, captured.record.snapshots[-1], captured.inputs, double=double, seed=seed)
    plain, functional = run(), run(tools=tools, by_node=False)
    if plain.error is not None or functional.error is not None:
        return None
    state = ways.Pair("random state", plain.random_state, functional.random_state)
    if numbers:
        return ways.Sides(ways.walk_pairs([state]), partial(_word_drawn, captured, plain), _measure_result)
    word = partial(_word_functional, captured, plain, partial(run, tools=tools))
    measure = partial(_measure_result, strided=strided)
    return ways.Sides(ways.walk_pairs(_pair_results(plain, functional)), word, measure)


def _word_drawn(captured: ways.CapturedGraphs, plain: NodeRun, parting: ways.PartedStep[str]) -> Found:
    """The last random call, of those in place if there are any: numbers are drawn into new memory there."""
    drawing = list_drawing_nodes(captured.record.snapshots[-1])
    node = next((each for each in reversed(drawing) if _is_written(each, plain)), drawing[-1])
    operators = plain.operators.get(node.name, [])
    culprit = Culprit.from_operator(FUNCTIONALIZATION, str(operators[-1]) if operators else None)
    culprit = replace(culprit, family="numbers drawn in place" if _is_written(node, plain) else culprit.family)
    details: DetailsJson = {"kind": "values", "differs": parting.pair.at}
    return Found(replace(culprit, nodes=(node.name,), site=find_location([node]), details=details, confidence="low"))


def _pair_results(plain: NodeRun, functional: NodeRun) -> Iterator[ways.Pair[str]]:
    for what, ours, theirs in (
        ("output", plain.outputs, functional.outputs),
        ("input", plain.inputs, functional.inputs),
    ):
        for number, (left, right) in enumerate(zip(ours, theirs, strict=False)):
            yield ways.Pair(f"{what} {number}", left, right)
    before, after = find_shared_memory(plain), find_shared_memory(functional)
    for name in before:
        # AOTAutograd regenerates views of inputs after the call: only memory that outputs share is its graph's.
        if not any(owner.startswith("input") for owner in (*before[name], *after.get(name, ()))):
            yield ways.Pair(name, before[name], after.get(name))


def _measure_result(pair: ways.Pair[str], *, strided: bool = False) -> ways.PartedStep[str] | None:
    if isinstance(pair.left, tuple):  # names of what shares the memory
        return ways.PartedStep(pair, "alias") if pair.left != pair.right else None
    strides = [list_significant_strides(each) for each in (pair.left, pair.right) if isinstance(each, torch.Tensor)]
    if strided and len(strides) == 2 and strides[0] != strides[1]:
        return ways.PartedStep(pair, "stride")
    return ways.measure_values(pair)


def _find_lossy_write(snapshot: Snapshot, inputs: Sequence[Any], plain: NodeRun) -> tuple[fx.Node, fx.Node] | None:
    lossy = find_lossy_views(snapshot, inputs)
    for node in snapshot.graph.nodes:
        first = node.args[0] if node.args and _is_written(node, plain) else None
        for view in first if isinstance(first, (list, tuple)) else [first]:  # `torch._foreach_` writes to a list
            while isinstance(view, fx.Node):
                if view.name in lossy:
                    return node, view
                view = view.args[0] if view.args else None
    return None


def _find_differing_nodes(
    graph: fx.Graph, plain: NodeRun, functional: NodeRun
) -> tuple[fx.Node | None, fx.Node | None]:
    """The first node whose value differs, and one before it that has another layout, if any: it is read by memory."""
    laid_out: fx.Node | None = None
    hollow: set[fx.Node] = set()  # what holds whatever was in its memory
    for node in graph.nodes:
        value, functionally = plain.values.get(node.name), functional.values.get(node.name)
        if _is_hollow(node, plain, hollow):
            hollow.add(node)
            continue
        if value is None or functionally is None:
            continue
        if ways.measure_step(value, functionally) > SEMANTIC_STEP:
            return node, laid_out
        if laid_out is None and list_significant_strides(value) != list_significant_strides(functionally):
            laid_out = node
    return None, laid_out


def _word_functional(
    captured: ways.CapturedGraphs, plain: NodeRun, again: Callable[[], NodeRun], parting: ways.PartedStep[str]
) -> Found:
    """The write at fault or, where a view loses what is not in it, that view at the place of the write."""
    snapshot, functional = captured.record.snapshots[-1], again()
    through = _find_lossy_write(snapshot, captured.inputs, plain)
    apart, laid_out = (None, None) if functional.error else _find_differing_nodes(snapshot.graph, plain, functional)
    node = read = laid_out or apart
    if through is not None:
        node = through[0]
    elif node is None or not (_is_written(node, plain) or is_wrapper(plain.values.get(node.name))):
        # What reads another value is not at fault, but the write before it; the last, if only late views differ.
        nodes = list(snapshot.graph.nodes)
        earlier = nodes[: nodes.index(node)] if node is not None else nodes
        node = next((each for each in reversed(earlier) if _is_written(each, plain)), node)
    if through is None and node is not None and apart is not None and _reads_beyond(apart, plain, functional):
        through = node, apart
    if node is None and (besides := _list_called_besides(snapshot.graph, plain)):
        return _word_lost_call(besides[-1])
    named = node if through is None else through[1]
    operators = plain.operators.get(named.name, []) if named is not None else []
    operator = next((op for op in operators if is_mutating(op)), operators[-1] if operators else None)
    details: DetailsJson = {
        "kind": parting.kind,
        "differs": parting.pair.at,
        "read": read.name if read is not None else None,
    }
    if through is not None:
        details["written through"] = through[1].name
    culprit = Culprit.from_operator(FUNCTIONALIZATION, str(operator) if operator is not None else None)
    if named is not None and is_wrapper(plain.values.get(named.name)):  # whose operators are those of its parts
        culprit = Culprit(FUNCTIONALIZATION, None, _name_call(named), _name_call(named).rpartition(".")[2])
    if node is not None:
        culprit = replace(culprit, nodes=(node.name,), site=find_location([node]))
    written = None if node is None else plain.values.get(node.name)
    draws = operator is not None and torch.Tag.nondeterministic_seeded in operator.tags
    if draws and written is not None and not written.is_contiguous():
        # Whichever draws: numbers are drawn into new memory, and land in its order.
        culprit = replace(culprit, family="numbers drawn in place")
    return Found(replace(culprit, step=parting.step, confidence="low", details=details))


def _reads_beyond(node: fx.Node, plain: NodeRun, functional: NodeRun) -> bool:
    """Return whether a view has other values though what it is a view of has not: it reads memory between or behind."""
    source, operators = node.args[0] if node.args else None, plain.operators.get(node.name)
    if not isinstance(source, fx.Node) or not operators or not all(map(is_view, operators)):
        return False
    values = [run.values.get(source.name) for run in (plain, functional)]
    return all(isinstance(value, torch.Tensor) for value in values) and ways.measure_step(*values) <= SEMANTIC_STEP


def _is_written(node: fx.Node, run: NodeRun) -> bool:
    return any(is_mutating(operator) for operator in run.operators.get(node.name, ()))


def _is_hollow(node: fx.Node, run: NodeRun, hollow: Collection[fx.Node]) -> bool:
    """Return whether a node makes uninitialised memory, or a view of that which is not written to."""
    called = run.operators.get(node.name, [])
    if any(map(leaves_unwritten, called)):
        return True
    return bool(called) and all(map(is_view, called)) and bool(node.args) and node.args[0] in hollow


_ANALYSIS = ways.Way("AOTAutograd's analysis, and a run", _find_contradictions, _prove_at_writes, most=3)
AOT_AUTOGRAD = (
    ways.Way("outputs that are views", _find_regenerated, _prove_alone, shows=lambda seen: True),
    replace(_ANALYSIS, shows=attrgetter("trial.observation.failure")),  # may be why it raises
    ways.Way(
        "what AOTAutograd raises", _find_raising, _prove_at_writes, attrgetter("trial.observation.failure"), most=3
    ),
    ways.Way(
        "outputs from which autograd reaches others",
        _find_joined,
        prove_at_call,
        lambda seen: seen.raises(facts().errors.not_reached),
    ),
    ways.Way("random calls of a program, and of its operators", _find_lost_draws, prove_at_call),
    ways.Way("tangents, and their copies", _find_tangents, ways.prove_without),
    ways.Way("dynamo's graph, and the same without in-place writes", _compare_functional, _prove_at_writes),
    ways.Way("calls in eager mode, and as they are traced", _compare_composites, prove_at_call, most=4),
    _ANALYSIS,
    ways.Way("calls for what they do besides", _find_effects_alone, _prove_alone, most=3),
    ways.Way("calls that make outputs which are views", _find_regenerated, _prove_at_views),
)
