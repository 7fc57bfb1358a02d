"""Stale graphs: a call runs a graph of an earlier one, though the Python state that it was traced from has changed.

A call is compiled anew from the same state. If that agrees with eager mode and the graph of an earlier call does not,
then no guard noticed the change: no tolerance is needed to tell such a graph from a wrong one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from fuzzcompile.compiler.compile_changes import SETTINGS, CompileChange, CompiledAnew, CompilePath, GraphsFromDisk
from fuzzcompile.compiler.graph_caches import GRAPH_CACHES, GraphCache
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.session import find_path
from fuzzcompile.compiler.torch_config import has_entry, load_config
from fuzzcompile.compiler.watch.fresh_calls import BUILDER
from fuzzcompile.compiler.watch.ledger import GuardRecord, Ledger
from fuzzcompile.diagnosis.attribution.culprit import Ablation, Attribution, Culprit, Workaround
from fuzzcompile.diagnosis.decision import Decision
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.contract import CACHED, COMPILE
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.facts import UnsafeSetting, facts
from fuzzcompile.model.stages import DYNAMO, RUNTIME, find_file_stage
from fuzzcompile.model.verdicts import AGREEING, ERRORS, Verdict
from fuzzcompile.run.call_state import FUNCTION_MODES, CallState, FactKind, StateFact
from fuzzcompile.run.code_files import get_module_file

# Changed facts that a report lists.
_MOST = 8
# Guards on what changed that a report lists.
_MOST_GUARDS = 6
# The kinds of guards that should notice a change, by the kind of fact; those that notice most come first.
_NOTICE: dict[FactKind, tuple[str, ...]] = {
    "value": ("EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "CONSTANT_MATCH", "ID_MATCH"),
    "keys": ("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS",
             "SET_NOT_CONTAINS", "EMPTY_NN_MODULE_HOOKS_DICT", "SEQUENCE_LENGTH", "DICT_VERSION", "EQUALS_MATCH",
             "CONSTANT_MATCH"),
    "length": ("SEQUENCE_LENGTH", "TUPLE_ITERATOR_LEN", "RANGE_ITERATOR_MATCH", "COUNT_ITERATOR_MATCH"),
    "type": ("TYPE_MATCH", "CLASS_MATCH", "FUNCTION_MATCH", "ID_MATCH"),
    "tensor": ("TENSOR_MATCH",),
    "same": ("DUPLICATE_INPUT", "ID_MATCH"),
    "memory": ("STORAGE_OVERLAPPING",),
    "object": ("ID_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "CLASS_MATCH", "MODULE_MATCH", "NN_MODULE",
               "BUILTIN_MATCH", "WEAKREF_ALIVE", "TYPE_MATCH"),
}  # fmt: skip
_OF_PRESENCE = ("HASATTR", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "NOT_PRESENT_IN_GENERIC_DICT", "DICT_KEYS_MATCH")
_OF_ORDER = ("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK", "DICT_VERSION")
_OF_MODES = ("GLOBAL_STATE", "GRAD_MODE", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "TORCH_FUNCTION_STATE")
_OF_ONE_MODE = {"torch.get_default_device()": "DEFAULT_DEVICE", FUNCTION_MODES: "TORCH_FUNCTION_STATE"}
_ONE_OF_A_FRAME = "GRAD_MODE"
# A guard that dynamo asks for under this name makes a check of one of three kinds, by the value.
_BY_VALUE = "CONSTANT_MATCH"
# Parts of the names of guards that are no part of a user's.
_MACHINERY = re.compile(r"^(L|G|_modules|_parameters|_buffers|__dict__|__closure__|cell_contents|\d+)$")
# Calls of a program that cannot be compiled anew, and are left to eager mode.
_MOST_UNCOMPILED = 3
_RESET = "torch.compiler.reset() before a call after such a change"


@dataclass(frozen=True)
class Attempt:
    """The calls of a program under one change of its compile: whether they are right, and what was recorded.

    ``wrong`` is the number of the first wrong call, from 1, where it is known; ``raised`` says whether the last of the
    calls could not be compiled.
    """

    right: bool
    ledger: Ledger
    wrong: int | None = None
    raised: bool = False


Compile = Callable[[Sequence[CompileChange]], Attempt]
"""Compiles a program under some changes and makes its calls."""


CachedCompile = Callable[[Sequence[CompileChange], Sequence[GraphCache]], Attempt]
"""The same, where the compiler may take graphs from some caches on disk."""


@dataclass(frozen=True)
class StaleCall:
    """A call that ran a stale graph: the decision, and the guard that should have noticed the change before it."""

    decision: Decision
    attribution: Attribution


def find_stale_call(experiments: Experiments, decision: Decision) -> StaleCall | None:
    """Return what made a graph stale, of a bug that shows with the graphs of earlier calls alone; None otherwise."""
    case = experiments.case
    stored, path = experiments.how.get(CompilePath), find_path(case.settings, experiments.how)
    if not decision.verdict.is_bug or experiments.against != "eager" or experiments.how.screen:
        return None
    if path not in (COMPILE, CACHED) or (path == COMPILE and not (case.calls or case.run)):
        return None
    if decision.evidence.replays:
        return None  # the values of its calls are within rounding

    def attempt(changes: Sequence[CompileChange], caches: Sequence[GraphCache] = ()) -> Attempt:
        if isinstance(stored, GraphsFromDisk):
            changes = [*changes, replace(stored, caches=tuple(caches)) if caches else CompilePath(COMPILE)]
        trial = experiments.trial(replace(experiments.how.under(*changes), record=False))
        judgement = trial.judgement
        apart = (comparison.name for comparison in judgement.comparisons if comparison.finding not in AGREEING)
        calls = [call for name in apart if (call := ObservableName.parse(name).call) is not None]
        right = not judgement.verdict.is_bug and not judgement.suspicious
        return Attempt(right, trial.ledger, min(calls) + 1 if calls else None, judgement.verdict in ERRORS)

    if path == CACHED:
        return explain_cached_graph(attempt, decision, GRAPH_CACHES, own=not (case.calls or case.run))
    return explain_stale_call(attempt, decision)


def explain_stale_call(attempt: Compile, decision: Decision) -> StaleCall | None:
    """Find what changed before a call that shows a bug, by compiling the calls anew; None where that mends nothing.

    The first of the changed facts that is enough to compile anew for is the culprit's; the verdict is ``by_design``
    where a setting with which torch leaves guards out is what left it out.
    """
    anew, first = _compile_anew(attempt, most=0 if decision.verdict in ERRORS else _MOST_UNCOMPILED)
    sizes = replace(anew, dynamic=True)
    calls, guards = first.ledger.calls, [guard for guard in first.ledger.guards if guard.call == 1]
    if len(calls) < 2 or not first.right:
        return None
    usual = attempt([replace(anew, facts=())])
    # What one call raises when it is compiled anew says nothing of the graph of another, which has to be the wrong one.
    if (anew.eager_calls and usual.right) or _is_traced_for_itself(usual, anew.eager_calls):
        return None
    changes = _list_changes(calls)
    ablations = [Ablation(anew.text, True, None)]
    if any(_leaves_sizes_open(calls[number].get_fact(name, calls[0])) for name, number in changes.items()):
        if not attempt([sizes]).right:
            return None  # the graph that dynamo makes once a size has changed is wrong by itself
        ablations.append(Ablation(sizes.text, True, None))
    # What changed before the wrong call itself says most. What dynamo asked a guard for was read; what has a check that
    # should have failed comes last. A program that looks at what a container holds shows it by its keys, and with the
    # items it may not have to do.
    ranks: dict[str, tuple[bool, int, bool]] = {}
    for name, number in changes.items():
        is_of_keys = calls[number].get_fact(name, calls[0]).kind == "keys"
        earlier = usual.wrong is not None and number + 1 != usual.wrong
        ranks[name] = earlier, _rank_evidence(name, calls[0], calls[number], guards), not is_of_keys
    needed = _find_needed(attempt, anew, sorted(changes, key=ranks.__getitem__), ablations)
    if needed is None:
        culprit = Culprit(DYNAMO, None, None, "no guard", confidence="low", details=_tell([]))
    else:
        said = [calls[changes[name]].describe_change(name, calls[0]) for name in needed[:_MOST]]
        alike = sum(number == changes[needed[0]] for number in changes.values())
        if len(needed) == 1 and alike > 1:
            said[0] += f" (of {alike} changes before that call)"
        culprit = _name_guard(needed[0], calls[0], calls[changes[needed[0]]], guards, said)
        culprit = replace(culprit, confidence="high" if len(needed) == 1 else "low")
    why = "a call runs the graph of an earlier one: compiled anew from the same state, it agrees with eager mode"
    if decision.verdict in ERRORS:
        why += f"; as it is, it raises {decision.detail}"
        culprit = replace(culprit, details={**culprit.details, "raises": decision.detail})
    told = f"{why}; what changed in between: {'; '.join(culprit.details['between_calls']) or 'nothing that it reaches'}"
    attribution = Attribution(culprit, ablations=ablations, workaround=Workaround(_RESET))
    stale = StaleCall(replace(decision, verdict=Verdict.STALE, detail=told), attribution)
    return _allow_setting(attempt, stale) or stale


def _compile_anew(attempt: Compile, *, most: int) -> tuple[CompiledAnew, Attempt]:
    """Compile each call anew, but for at most so many later ones that raise then: these run in eager mode."""
    anew = CompiledAnew()
    made = attempt([anew])
    while made.raised and len(made.ledger.calls) > 1 and len(anew.eager_calls) < most:
        anew = replace(anew, eager_calls=(*anew.eager_calls, len(made.ledger.calls)))
        made = attempt([anew])
    return anew, made


def _is_traced_for_itself(usual: Attempt, eager: Collection[int]) -> bool:
    """Return whether the wrong call traces all that the first did, so that no graph of an earlier one runs in it.

    So must each later call where it is not known which of them is wrong.
    """
    traced = Counter(guard.call for guard in usual.ledger.guards if guard.kind == _ONE_OF_A_FRAME)
    later = set(range(2, len(usual.ledger.calls) + 1)) - set(eager) if usual.wrong is None else [usual.wrong]
    return traced[1] > 0 and all(traced[call] >= traced[1] for call in later)


def explain_cached_graph(
    attempt: CachedCompile, decision: Decision, hit: Sequence[GraphCache], *, own: bool = False
) -> StaleCall | None:
    """Find the cache on disk that gave a call a wrong graph; None where they are not why.

    ``hit`` are those that a graph has come out of. With none of them, the calls must be right. The graph is that of
    another program, unless none but the program's ``own`` can have been stored.
    """
    if not hit or not attempt([], ()).right:
        return None
    ablations, needed = [Ablation("no graphs from caches on disk", True, None)], hit[0]
    for cache in reversed(hit):  # one cannot be used without those before it
        repaired = attempt([], [other for other in hit if other is not cache]).right
        ablations.append(Ablation(f"no graphs from {cache.name}", repaired, None))
        if repaired:
            needed = cache
            break
    calls = attempt([CompiledAnew()], ()).ledger.calls
    changes = _list_changes(calls) if len(calls) > 1 else {}
    said = [calls[number].describe_change(name, calls[0]) for name, number in changes.items()][:_MOST]
    place = needed.load if own else needed.key
    file, line = find_definition(place)
    module, _, name = place.partition(":")
    stage = find_file_stage(get_module_file(module)) or RUNTIME
    details: DetailsJson = {"kind": "cache", "between_calls": said}
    culprit = Culprit(
        stage, None, name, "restored graph" if own else "cache key", (), file, line, necessary=True, details=details
    )
    setting = f"torch._{needed.config}.config.{needed.entry} = False"
    whose = "of the program as another process compiled it" if own else "of another program, or of this one earlier"
    told = f"a call runs a graph that {needed.name} on disk keeps {whose}; without it, it is right"
    attribution = Attribution(culprit, ablations=ablations, workaround=Workaround(setting))
    return StaleCall(replace(decision, verdict=Verdict.STALE, detail=told), attribution)


def _find_needed(attempt: Compile, anew: CompiledAnew, names: list[str], ablations: list[Ablation]) -> list[str] | None:
    """The fewest of the changed facts that it is enough to compile anew for, by halves; None if all are not enough."""

    def is_enough(chosen: list[str]) -> bool:
        alone = replace(anew, facts=tuple(chosen))
        ablations.append(Ablation(alone.text, bool(chosen) and attempt([alone]).right, None))
        return ablations[-1].repairs

    if not names or not is_enough(names):
        return None
    while len(names) > 1:
        middle = (len(names) + 1) // 2
        half = next((half for half in (names[:middle], names[middle:]) if is_enough(half)), None)
        if half is None:
            break  # changes before several calls, each of which ran a stale graph
        names = half
    return names


def _allow_setting(attempt: Compile, stale: StaleCall) -> StaleCall | None:
    """The same as no bug, where a setting of torch leaves out what would notice the change; None where none does."""
    known = [setting for setting in facts().unsafe if has_entry(load_config(setting.config), setting.entry)]
    changes = {setting.entry: SETTINGS[setting.config]({setting.entry: setting.safe}) for setting in known}
    if not known or not attempt(list(changes.values())).right:
        return None
    setting: UnsafeSetting = next((each for each in known if attempt([changes[each.entry]]).right), known[0])
    change, attribution = changes[setting.entry], stale.attribution
    culprit = attribution.culprit
    assert culprit is not None, "a stale call has one"
    if not culprit.necessary:  # no guard is missing
        culprit = Culprit(setting.stage, None, setting.entry, setting.entry, necessary=True, details=culprit.details)
    details: DetailsJson = {**culprit.details, "design": setting.why, "design_source": setting.source}
    allowed = replace(
        attribution,
        culprit=replace(culprit, details=details),
        ablations=[*attribution.ablations, Ablation(change.text, True, None)],
        workaround=Workaround(str(change.workaround)),
    )
    told = f"{stale.decision.detail}; by design of torch: {setting.why}"
    return StaleCall(replace(stale.decision, verdict=Verdict.BY_DESIGN, confidence="high", detail=told), allowed)


def _rank_evidence(name: str, before: CallState, after: CallState, guards: Sequence[GuardRecord]) -> int:
    wanted = _list_wanted(name, before, after)
    found = [guard for guard in _match(name, wanted, guards) if guard.kind in wanted and guard.name]
    return 1 if not found else 0 if any(not guard.checks or guard.kind not in guard.made for guard in found) else 2


def _tell(changed: list[str], guards: Sequence[GuardRecord] = ()) -> DetailsJson:
    details: DetailsJson = {"kind": "guard", "between_calls": changed}
    if guards:
        checks = [f"{guard.kind} on {guard.name}: {'; '.join(guard.checks) or 'no check'}" for guard in guards]
        details["guards"] = checks[:_MOST_GUARDS]
    return details


def _list_changes(calls: Sequence[CallState]) -> dict[str, int]:
    """The names of the facts that are others than before the first call, each with the first call that has it so."""
    changes: dict[str, int] = {}
    for number, state in enumerate(calls[1:], 1):
        for name in state.list_changes(calls[0]):
            changes.setdefault(name, number)
    return changes


def _leaves_sizes_open(fact: StateFact) -> bool:
    """Return whether dynamo may leave open what it traces after such a change: a size, or a number."""
    return fact.kind == "tensor" or (
        fact.kind == "value" and isinstance(fact.value, tuple) and fact.value[0] in (int, float)
    )


def _name_guard(
    name: str, before: CallState, after: CallState, guards: Sequence[GuardRecord], said: list[str]
) -> Culprit:
    """The guard that should have noticed a change: asked for and not made, made and too weak, or not asked for."""
    fact, wanted = after.get_fact(name, before), _list_wanted(name, before, after)
    found = sorted(_match(name, wanted, guards), key=lambda guard: _order(guard, wanted))
    details = _tell(said, found)
    first = next((guard for guard in found if guard.kind in wanted), None)
    details["guard"] = "not asked for"
    if first is None:
        held = f"keys of an {fact.carrier}" if fact.kind == "keys" else fact.carrier
        kind = _name_check(fact) if fact.kind == "value" and fact.carrier != "mode" else wanted[0]
        return Culprit(DYNAMO, None, kind, f"no guard on {held}", necessary=True, details=details)
    kind = _name_check(fact) if first.kind == _BY_VALUE else first.kind
    replaced = first.made and kind not in first.made
    details["guard"] = f"{', '.join(first.made)} in its place" if replaced else _TOLD[bool(first.checks)]
    place = find_definition(f"{BUILDER[0]}:{BUILDER[1]}.{kind}")
    return Culprit(DYNAMO, None, kind, kind, (), *place, necessary=True, details=details)


_TOLD = {True: "it holds", False: "no check on record"}


def _list_wanted(name: str, before: CallState, after: CallState) -> tuple[str, ...]:
    """The kinds of guards that should notice a change."""
    fact = after.get_fact(name, before)
    if fact.carrier == "mode":
        return (_OF_ONE_MODE[name], *_OF_MODES) if name in _OF_ONE_MODE else _OF_MODES
    if fact.kind not in ("same", "memory") and after.tells_presence(name, before):
        return _OF_PRESENCE
    if fact.kind == "tensor" and isinstance(fact.value, tuple):
        now = after.facts[name].value
        if isinstance(now, tuple) and fact.value[0] != now[0]:
            return (*_NOTICE["tensor"], "SHAPE_ENV")
    if fact.kind == "keys" and _is_reordered(fact.value, after.facts[name].value):
        return _OF_ORDER
    return _NOTICE[fact.kind]


def _is_reordered(before: object, after: object) -> bool:
    return isinstance(before, tuple) and isinstance(after, tuple) and set(before) == set(after)


def _name_check(fact: StateFact) -> str:
    held = fact.value[0] if isinstance(fact.value, tuple) else None
    return {bool: "BOOL_MATCH", type(None): "NONE_MATCH"}.get(held, "EQUALS_MATCH")


def _order(guard: GuardRecord, wanted: Sequence[str]) -> tuple[bool, bool, int]:
    """Guards of a kind that should have noticed come first, and of these the ones that were not made."""
    known = guard.kind in wanted
    return not known, bool(guard.checks), wanted.index(guard.kind) if known else 0


def _match(name: str, wanted: Sequence[str], guards: Sequence[GuardRecord]) -> Iterator[GuardRecord]:
    """The guards on what a fact is about: their names end as its does. Those of the process have none."""
    names = name.split(" is ")
    own, items = {parts[-1] for part in names if (parts := _split(part))}, set(map(_is_item, names))
    for guard in guards:
        if _is_item(guard.name) not in items:
            continue  # what a container holds is not the container
        parts = _split(guard.name)
        if (parts and parts[-1] in own) or guard.part in own or (not parts and guard.kind in wanted):
            yield guard


def _is_item(name: str) -> bool:
    return re.search(r"\[\d+\]\)?$", name) is not None


def _split(name: str) -> list[str]:
    return [part for part in re.findall(r"\w+", name) if not _MACHINERY.match(part)]
