"""Ways around capture: a program, dynamo's graphs of it, and the instruction that dynamo runs otherwise than eager."""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from fuzzcompile.compiler.compile_changes import (
    CAPTURE_ONLY,
    BypassedNodes,
    DynamoSettings,
    GraphBreak,
    InstructionLeftOut,
    WatchedInstructions,
    keep_numbers,
)
from fuzzcompile.compiler.functional_run import bypass_modes, list_modes, run_eagerly
from fuzzcompile.compiler.graph_breaks import find_handler, find_numpy_name, resolve_call
from fuzzcompile.compiler.graph_replay import list_random_calls
from fuzzcompile.compiler.instructions import (
    InstructionTrace,
    PartedInstruction,
    find_partings,
    list_settings,
    record_instructions,
)
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.kernels.lowering_control import get_operator_name
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.operators.operator_crossref import (
    list_called_operators,
    list_profiled_operators,
    list_traced_paths,
    profile_operators,
)
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch.rule_labels import find_location, find_source
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Divergence
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages import ways
from fuzzcompile.diagnosis.stages.ways import Found, Suspect, iter_captured
from fuzzcompile.diagnosis.trials.experiments import Experiments, run_compiled
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.evidence import EFFECT, ObservableName
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DYNAMO, FUNCTIONALIZATION
from fuzzcompile.model.thresholds import ANOTHER_CALL_ULPS
from fuzzcompile.model.verdicts import AGREEING
from fuzzcompile.run import runs
from fuzzcompile.run.case_program import build
from fuzzcompile.run.code_files import get_module_file, iter_program_lines, shorten_file
from fuzzcompile.run.observation import Failure
from fuzzcompile.run.ranks import require_one_process

__watches_calls__ = True  # its frames stand between a call and the program that makes it


def run_calls_eagerly(
    experiments: Experiments, context: Callable[[], contextlib.AbstractContextManager[Any]], *, most: int | None = None
) -> list[Any]:
    """Run the program in eager mode, each call of its model, or the first ones, in a context; what these yield.

    Raises:
        NotOnAllRanks: the case runs in several processes.
    """
    require_one_process("a walk along the calls of eager mode")
    program, entered = build(experiments.case, experiments.device), list[Any]()

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if most is not None and len(entered) >= most:
            return original(*args, **kwargs)
        with context() as yielded:
            entered.append(yielded)
            return original(*args, **kwargs)

    def call_function(*args: Any, **kwargs: Any) -> Any:
        return call(program.model, *args, **kwargs)

    model: Callable[..., object] = call_function
    if isinstance(program.model, torch.nn.Module):  # a program may set something on it between its calls
        model = program.model
        model.__class__ = _watch_calls(type(model), call)
    runs.observe(experiments.case, program, model)
    return entered


def _watch_calls(kind: type[torch.nn.Module], call: Callable[..., Any]) -> type[torch.nn.Module]:
    """A class of modules like another one whose calls go through ``call``."""

    def call_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call(partial(kind.__call__, self), *args, **kwargs)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (kind,), {**names, "__call__": call_module})


def run_first_eagerly(experiments: Experiments, context: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    """Run the program in eager mode, the first call of its model in a context; what that yields."""
    return next(iter(run_calls_eagerly(experiments, context, most=1)), None)


_FEW = 2


def _find_branch(divergence: Divergence) -> Iterator[Found]:
    """Operators that a program of one graph, without random numbers, calls in eager mode alone, or its graph alone."""
    ledger = divergence.trial.ledger
    for _, record, inputs in ways.iter_captured(ledger) if len(ledger.frames) == 1 and not ledger.graph_breaks else ():
        snapshot = record.snapshots[0]
        if list_random_calls(snapshot):
            return
        heard = run_first_eagerly(divergence.experiments, profile_operators)
        eager = [name for name, _ in list_profiled_operators(heard, {""})] if heard is not None else []
        captured = list_called_operators(snapshot, inputs)
        matcher = difflib.SequenceMatcher(a=eager, b=[name for name, _ in captured], autojunk=False)
        parted = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
        if not parted:
            return
        ours = [name for _, start, end, _, _ in parted for name in eager[start:end]]
        alone = [captured[place] for _, _, _, start, end in parted for place in range(start, end)]
        theirs, names = [name for name, _ in alone], {node for _, node in alone}
        # The first operator of eager mode that the graph calls nowhere, else the first of the graph's own.
        anywhere = {name for name, _ in captured}
        telling = next((name for name in ours if name not in anywhere), (*theirs, *ours)[0])
        calling = [node for node in snapshot.graph.nodes if node.name in names]
        # NumPy itself calls no operators.
        telling = next(filter(None, map(find_numpy_name, calling)), telling)
        place, where = _find_module(calling[0]) if calling else (None, None), find_location(calling[:1])
        nodes, site = tuple(dict.fromkeys(node for _, node in alone)), None if where is None else f"{where} #1"
        culprit = Culprit.from_operator(DYNAMO, telling, place, nodes=nodes, site=site)
        yield Found(replace(culprit, details={"kind": "branch", "eager": ours, "compiled": theirs}))


def _find_module(node: fx.Node) -> tuple[str | None, int | None]:
    for _, kind in reversed(list((node.meta.get("nn_module_stack") or {}).values())):
        source, line = find_source(getattr(kind, "forward", None))
        if source is not None and "/" in source:
            return source, line
    return None, None


def _prove_branch(ablator: Ablator, found: Found) -> Attribution | None:
    """The branch, proved where its graph without the few calls of its own, or eager mode on the traced path, agrees."""
    culprit, agrees = found.culprit, ""
    if 0 < len(culprit.nodes) <= _FEW:
        bypassed = BypassedNodes(culprit.nodes)
        toggle = f"{CAPTURE_ONLY.text} {bypassed.text}"
        if ablator.is_repaired_by(CAPTURE_ONLY, bypassed, toggle=toggle, record=False):
            operator, agrees = culprit.details["compiled"][0], toggle
            if culprit.rewrite in (operator, *culprit.details["eager"]):
                culprit = replace(culprit, rewrite=operator, family=get_operator_family(operator))
    if not agrees:
        paths = list_traced_paths()
        agrees = next((path for path, change in paths if ablator.attempt_in_eager(change, path)), "")
    if not agrees:
        return ways.doubt(ablator, found)
    return Attribution(replace(culprit, necessary=True, details={**culprit.details, "agrees": agrees}))


# The program's calls in eager mode and the nodes of the captured graphs, matched line by line.

_KEPT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class _EagerCall:
    """A call of the program: what was called, on which line, and the first tensor of its result."""

    function: Callable[..., Any]
    name: str
    line: str
    value: torch.Tensor | None


def _compare_calls(divergence: Divergence) -> Iterator[ways.Sides[tuple[_EagerCall, str]]]:
    captured = _replay_captured(divergence)
    if not captured:
        return
    lost: list[_EagerCall] = []

    def pair_calls() -> Iterator[ways.Pair[tuple[_EagerCall, str]]]:
        watcher = run_first_eagerly(divergence.experiments, _CallRecorder)
        calls = watcher.calls if watcher is not None else []
        number_at, seen = Counter(call.line for call in calls), Counter[str]()
        for call in calls:
            number, there = seen[call.line], captured.get(call.line)
            seen[call.line] += 1
            if call.name in facts().operators.uninitialised:
                continue
            if there is None:
                in_place = call.name.endswith("_") and not call.name.startswith("__")
                lost.extend([call] if in_place or call.name.startswith("__i") or call.name == "__setitem__" else [])
                continue
            last = number == number_at[call.line] - 1
            if len(there) == number_at[call.line] or last:
                node, value = there[number] if len(there) == number_at[call.line] else there[-1]
                yield ways.Pair((call, node), call.value, value)

    def word(parting: ways.PartedStep[tuple[_EagerCall, str]]) -> Found:
        call, node = parting.pair.at
        if lost:  # a write that is in no graph comes before what reads it
            call = lost[-1]
        place, nodes = find_source(find_handler(call.function, call.name)), () if lost else (node,)
        details: DetailsJson = {"kind": "lost" if lost else "values", "call": call.name}
        culprit = Culprit(DYNAMO, None, call.name, call.name, nodes, *place, site=call.line, details=details)
        return Found(culprit, GraphBreak(((call.name, resolve_call(call.function)),)))

    yield ways.Sides(ways.walk_pairs(pair_calls()), word, _measure_call)


def _measure_call(pair: ways.Pair[tuple[_EagerCall, str]]) -> ways.PartedStep[tuple[_EagerCall, str]] | None:
    """Tell two results that one kernel on the same values could not have given."""
    eager, captured = pair.left, pair.right
    if not isinstance(eager, torch.Tensor) or not isinstance(captured, torch.Tensor):
        return None
    if eager.shape == captured.shape and eager.dtype == captured.dtype:
        exact = not eager.is_floating_point()
        if relative_change(eager, captured) <= (0 if exact else ANOTHER_CALL_ULPS * torch.finfo(eager.dtype).eps):
            return None
    return ways.PartedStep(pair)


def _replay_captured(divergence: Divergence) -> dict[str, list[tuple[str, Any]]]:
    """Names and values of the nodes of dynamo's graphs, by the line of the program that they come from.

    A graph that comes back to a line of an earlier one was captured in another call of the program.
    """
    values: dict[str, list[tuple[str, Any]]] = {}
    for frame, record, inputs in ways.iter_captured(divergence.trial.ledger):
        snapshot = record.snapshots[0]
        if not frame.dynamo_calls:
            continue
        if list_random_calls(snapshot):
            return {}
        run = run_eagerly(snapshot, inputs, double=False)
        values_here: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for node in snapshot.graph.nodes:
            where = find_location([node])
            if node.op.startswith("call") and where is not None and run.values.get(node.name) is not None:
                values_here[where].append((node.name, run.values[node.name]))
        if not values.keys() & values_here.keys():
            values.update(values_here)
    return values


class _CallRecorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_EagerCall] = []
        self._kept = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        line = next(iter_program_lines(), None)
        # ``x[i] = v`` has no result: what it wrote to is its value.
        value = args[0] if result is None and args else result
        if line is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            self._kept += value.numel() * value.element_size()
            if self._kept <= _KEPT_BYTES:
                self.calls.append(_EagerCall(func, getattr(func, "__name__", str(func)), line, value.detach().clone()))
        return result


CALLS = ways.Way("a program's calls, and the nodes of dynamo's graphs", _compare_calls, ways.prove_without)
BRANCH = ways.Way("the operators of a program, and those of dynamo's graph", _find_branch, _prove_branch)


# Numbers that dynamo makes symbols once they have changed: what it computes of these, it computes by other code.


def _find_symbols(divergence: Divergence, stage: str) -> Iterator[Found]:
    nodes = [
        node for each in ways.iter_captured(divergence.trial.ledger) for node in each.record.snapshots[0].graph.nodes
    ]
    for kind, symbol in facts().symbols.items():
        if symbol.reader and stage == DYNAMO:
            continue  # it works on AOTAutograd's graphs
        computing = next(filter(_SYMBOLS[kind], nodes), None)
        if computing is not None:
            named = get_operator_name(computing.target) if computing.op == "call_function" else symbol.function
            culprit = Culprit(stage, None, symbol.function, named, (), *find_definition(symbol.place))
            yield Found(replace(culprit, details={"kind": "symbol"}), keep_numbers(symbol))


def _computes(*kinds: type) -> Callable[[fx.Node], bool]:
    return lambda node: node.op == "call_function" and isinstance(node.meta.get("example_value"), kinds)


def _is_number(node: fx.Node) -> bool:
    """Return whether an input of the graph is a tensor of the form that dynamo gives numbers."""
    value = node.meta.get("example_value") if node.op == "placeholder" else None
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype == torch.float64


def prove_symbols(ablator: Ablator, found: Found) -> Attribution | None:
    """A number, if the program is right with its value in the graphs, of which there are no more than dynamo makes."""
    if found.without is None:
        return None
    trial, repaired = ablator.attempt_under(found.without)
    most = int(getattr(load_config(DynamoSettings.config), "recompile_limit", 8))
    broken = len(trial.ledger.graph_breaks) > len(ablator.trial.ledger.graph_breaks)
    if not repaired or broken or len(trial.ledger.frames) >= most:
        return None
    return Attribution(replace(found.culprit, necessary=True, confidence="high"))


_SYMBOLS: Mapping[str, Callable[[fx.Node], bool]] = {
    "float": _computes(float, torch.SymFloat),
    "int": _computes(int, torch.SymInt),
    "tensor": _is_number,
}
SYMBOLS = {
    stage: ways.Way("numbers that are symbols", partial(_find_symbols, stage=stage), prove_symbols, most=None)
    for stage in (DYNAMO, FUNCTIONALIZATION)
}
"""That, in dynamo itself and in what AOTAutograd makes of its graphs."""


# What a call leaves in Python objects: dynamo replays it behind its graphs.

_LISTED = 6


def _find_effects(divergence: Divergence) -> Iterator[Found]:
    wrong = [each for each in divergence.trial.judgement.comparisons if each.finding not in AGREEING]
    names = [name for comparison in wrong if (name := ObservableName.parse(comparison.name)).is_effect]
    if names:
        held = names[0].what.removeprefix(EFFECT).partition("(")[0]
        kind = {"list": "order or keys", "len": "length", "set": "members"}.get(held, "value")
        place = find_definition(facts().places.side_effects)
        details: DetailsJson = {"kind": "effect", "effects": [str(name) for name in names[:_LISTED]]}
        yield Found(Culprit(DYNAMO, None, "side effects", f"effect on {kind}", (), *place, details=details))
    yield from itertools.islice(_find_returned(divergence, [comparison.name for comparison in wrong]), 1)


def _find_returned(divergence: Divergence, wrong: Sequence[str]) -> Iterator[Found]:
    """Objects that are returned as another class: dynamo makes them anew behind its graphs."""
    runs = divergence.experiments.baseline, divergence.trial.observation
    eager, compiled = (run.index_by_name() for run in runs)
    classes = [
        tuple(type(values[name].value).__qualname__ for values in (eager, compiled))
        for name in wrong
        if name in eager and name in compiled and eager[name].kind == "output" and not eager[name].is_tensor
    ]
    if not any(run.failure for run in runs):
        classes += [("containers", "others")] * (runs[0].structure != runs[1].structure)
    for expected, got in classes:
        if expected != got:
            called, place = f"returned {expected}", find_definition(facts().places.returned_objects)
            details: DetailsJson = {"kind": "class", "expected": expected, "got": got}
            yield Found(Culprit(DYNAMO, None, called, called, (), *place, details=details))


def _prove_effects(ablator: Ablator, found: Found) -> Attribution | None:
    """The replay of effects: they are missing where nothing but dynamo is between the program and eager mode.

    That has been tried: where it repairs the divergence, the stage is right, and nothing of it is proved. Nor is it why
    an object that is returned is of another class.
    """
    if found.culprit.details.get("kind") != "effect":
        return Attribution(replace(found.culprit, confidence="low"))
    return Attribution(replace(found.culprit, necessary=True, sufficient=True))


EFFECTS = ways.Way("what a call leaves in Python objects, and returns", _find_effects, _prove_effects)


def prove_ignored_mode(ablator: Ablator) -> Attribution | None:
    """The mode without which eager mode agrees with the compiled program; None if there is none."""
    if not ablator.is_of_values or not list_modes():  # most programs have none, and need no run to say so
        return None
    named = tuple(run_first_eagerly(ablator.experiments, bypass_modes) or ())
    for names in [(name,) for name in named] + [named] * (len(named) > 1):
        if ablator.attempt_in_eager(bypass_modes(names), f"eager mode without {', '.join(names)}"):
            name = "+".join(names)
            return Attribution(Culprit(DYNAMO, None, name, name, necessary=True, details={"kind": "mode"}))
    return None


_TRIED = 5
_SETTINGS = 2  # of these, where later calls are tried too


def prove_instruction(ablator: Ablator, *, doubts: bool, own_errors: bool = False) -> Attribution | None:
    """The instruction behind which dynamo's tracing parts from eager mode, if the program is right with it there.

    None where the program is right with dynamo alone, which needs no look at its tracing. One that is not proved is
    named if ``doubts``; an error of dynamo's own is looked at with ``own_errors``.
    """
    failure = ablator.trial.observation.failure
    # Of an error of dynamo's own, an operator that raises by itself says more: it comes first.
    observed = failure is None or _is_of_program(failure)
    if own_errors:
        observed = failure is not None and failure.stage == DYNAMO
    if not observed or ablator.is_repaired_by(CAPTURE_ONLY, record=False):
        return None
    raised = () if failure is None else failure.raised
    partings, alone, cleared = _find_partings(ablator)[:_TRIED], list[PartedInstruction](), list[PartedInstruction]()
    for parted in partings:
        trial, is_right = ablator.attempt_under(InstructionLeftOut(parted.instructions))
        if is_right and trial.ledger.frames and not trial.ledger.given_up:
            return Attribution(replace(_make_culprit(parted, raised), necessary=True, confidence="high"))
        if is_right:  # dynamo could not break the graph there, and left the whole frame to eager mode
            alone.append(parted)
        elif parted.of_tensors and trial.ledger.frames and not trial.ledger.given_up:  # eager mode ran it in vain
            cleared.append(parted)
    seen = [parted for parted in partings if parted.kind != "setting"]
    if not alone and seen and seen[0] not in cleared:
        whole = InstructionLeftOut(seen[0].instructions, whole=True)
        alone = seen[:1] if ablator.attempt_under(whole)[1] else []
    if alone:
        # Eager mode with the whole frame is right whatever is at fault in it: what was seen to part says more.
        is_seen = alone[0].kind != "setting"
        sure = is_seen and len(seen) == 1
        culprit = replace(_make_culprit(alone[0], raised), necessary=True if is_seen else None)
        return Attribution(replace(culprit, confidence="high" if sure else "low"))
    return Attribution(replace(_make_culprit(seen[0], raised), confidence="low")) if doubts and seen else None


def _is_of_program(failure: Failure) -> bool:
    """Return whether dynamo met with an exception of the program's, or the code that it wrote for it raises one."""
    written = failure.phase == "run" and failure.site is not None and failure.site.owner in ("program", "library")
    return written or failure.message.startswith(facts().dynamo.observed)


def list_instruction_suspects(divergence: Divergence) -> list[Suspect]:
    """List the instructions behind which dynamo's tracing parts from eager mode; it traces the program once more."""
    failure = divergence.trial.observation.failure
    raised = () if failure is None else failure.raised
    culprits = (_make_culprit(parted, raised) for parted in _find_partings(divergence)[:_TRIED])
    return [Suspect(DYNAMO, culprit.family, culprit.source) for culprit in culprits]


def _find_partings(divergence: Divergence) -> list[PartedInstruction]:
    trace = InstructionTrace(divergence.trial.ledger)
    how = replace(divergence.how.under(CAPTURE_ONLY, WatchedInstructions(trace)), record=False)
    run = run_compiled(divergence.experiments.runs, how, divergence.experiments.counts)
    captured = [(record.snapshots[0], inputs) for _, record, inputs in iter_captured(divergence.trial.ledger)]
    raised = run.failure.message if run.failure is not None else ""
    # Recorded is what dynamo traced last: in the first call, or in a later one, the last before all others. A later
    # call may also part for what an earlier one has left undone.
    sums = not divergence.experiments.runs.draws
    calls = run_calls_eagerly(divergence.experiments, record_instructions)
    # Several graphs are of later calls where there are any, else behind graph breaks of the first.
    of_later = len(captured) > 1 and len(calls) > 1
    if not of_later:
        trace.tensors.replay(captured, sums=sums)
    first = [parted for eager in calls[:1] for parted in find_partings(eager, trace, raised, 1)]
    if of_later or not first:  # beside a trace of the first call, tensors of a later one may be others, for its state
        trace.tensors.replay(captured, sums=sums and of_later)
    later = [find_partings(calls[at], trace, raised, at + 1) for at in reversed(range(1, len(calls)))]
    # Against a trace of another call, one may part for what has changed in between.
    found = list(itertools.chain(*later[:1], first, *later[1:])) if of_later else first or list(itertools.chain(*later))
    found = [parted for parted in found if parted.call is not None] or found
    # What requires a gradient hangs on what was set.
    if first and found[0].kind != "gradient":
        return found
    return [*list_settings(trace)[: _SETTINGS if found else None], *found]


def _make_culprit(parted: PartedInstruction, raised: Sequence[tuple[str, int, str]]) -> Culprit:
    instruction = parted.instruction
    site = f"{shorten_file(instruction.code.co_filename)}:{instruction.line} #1"
    details: DetailsJson = {"kind": parted.kind, "expected": parted.expected, "got": parted.got}
    if parted.call is not None:
        details["traced call"] = parted.call
    if raised and parted.kind == "error":  # what it met with in dynamo is one bug in whatever program
        file, line, function = raised[0]
        return Culprit(DYNAMO, None, function, function, source=file, line=line, site=site, details=details)
    if parted.kind == "handler":
        name, place = f"except {parted.expected}", find_definition(facts().dynamo.operator_errors)
        return Culprit(DYNAMO, None, name, name, (), *place, site=site, details=details)
    module = getattr(instruction.handler, "__module__", None)
    source = get_module_file(module) if module is not None else None
    name = parted.expected if parted.kind == "call" else instruction.does
    return Culprit(DYNAMO, None, name, name, source=source, site=site, details=details)
