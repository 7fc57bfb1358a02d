"""Wrappers of the functions through which Inductor runs passes and patterns, plain functions over graphs included."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence

from torch import fx
from torch._inductor.pattern_matcher import Match, PatternEntry, PatternMatcherPass
from torch.fx.passes.graph_transform_observer import GraphTransformObserver

from fuzzcompile.compiler import custom_code
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.compiler.watch.rule_labels import is_explained, run_explained
from fuzzcompile.compiler.watch.torch_patch import Function, Patch, contain_errors, run_contained
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import GRAPH_STAGES, JOINT_GRAPH, PARTITION, SCHEDULER

# Functions of torch that change a graph and are run as no observed pass: found by their first parameter.

_PACKAGE = "torch._inductor.fx_passes"
_PASSES = facts().passes


def list_plain_patches(recorder: Recorder | None = None) -> Sequence[Patch[Recorder]]:
    """A patch for each such function of the modules loaded so far."""
    names = (name for name in list(sys.modules) if name.startswith(_PACKAGE) or name in _PASSES.modules)
    return _make_patches(tuple(names))


def list_plain_passes() -> list[str]:
    """Names of the functions that are watched, of the modules loaded so far."""
    return sorted({patch.attribute for patch in list_plain_patches()})


@functools.lru_cache(maxsize=4)
def _make_patches(modules: tuple[str, ...]) -> tuple[Patch[Recorder], ...]:
    stages = (*GRAPH_STAGES, PARTITION)
    return tuple(
        Patch(
            f"pass {name}", stages, f"changes of the graph by {name}", module, name, functools.partial(_run_plain, name)
        )
        for module in modules
        for name, value in list(vars(sys.modules[module]).items())
        if _changes_graphs(name, value)
    )


def _changes_graphs(name: str, value: object) -> bool:
    """Return whether ``value`` takes a graph first and gives back nothing, a number or a graph."""
    if name in _PASSES.stages or name.lstrip("_").startswith(_PASSES.reading):
        return False
    own = isinstance(value, types.FunctionType)
    of_passes = own or type(value).__module__.startswith(_PACKAGE)
    function = value if own else vars(type(value)).get("__call__")
    if not of_passes or not isinstance(function, types.FunctionType) or not function.__module__.startswith("torch."):
        return False
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount][0 if own else 1 :]
    hints = function.__annotations__
    second = parameters[1] if len(parameters) > 1 else ""
    edits_node = second.rstrip("s").endswith("node") or _get_type_name(hints.get(second)) == "Node"
    if not parameters or edits_node:  # on behalf of a pass
        return False
    takes = parameters[0] in _PASSES.graph_parameters or _get_type_name(hints.get(parameters[0])) in _PASSES.graph_types
    returned = ("", "None", "NoneType", "int", "bool", *_PASSES.graph_types)
    return takes and _get_type_name(hints.get("return")) in returned


def _get_type_name(hint: object) -> str:
    """``Graph`` for an annotation ``torch.fx.Graph``, given as text or as a class."""
    text = "" if hint is None else hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    return text.rsplit(".", 1)[-1]


def _run_plain(name: str, recorder: Recorder, original: Function, *args: object, **kwargs: object) -> object:
    by_rule, function, graph = name in _PASSES.by_rule, vars(original)["__wrapped__"], args[0] if args else None
    if isinstance(graph, fx.GraphModule) and recorder.stage_name == PARTITION and not recorder.owns(graph):
        with recorder.record_partition(graph, part=True):
            return _run_plain(name, recorder, original, *args, **kwargs)
    if not recorder.owns(graph) or (recorder.in_observed_pass and not by_rule):
        return original(*args, **kwargs)
    rewrite = type(args[1]).__name__ if by_rule and len(args) > 1 else name
    source, line = rule_labels.find_source(function if hasattr(function, "__code__") else type(function).__call__)
    within = recorder.pass_name if recorder.in_observed_pass else rewrite
    label = Label(recorder.stage_name, within, rewrite, source, line)
    # What stands for a run that changed nothing, by the kind of the function's result.
    unchanged = {"nothing": None, "number": 0, "graph": graph}
    container = rewrite.endswith("passes")  # it only runs others
    if recorder.refuses(label, container=container, can=lambda: _find_result_kind(function) in unchanged):
        return unchanged[_find_result_kind(function)]
    if by_rule:
        recorder.note_surrounding(label)
    with recorder.record_pass(label, plain=not by_rule):
        result = original(*args, **kwargs)
        recorder.record_result(graph, result)
    recorder.announce(label, graph, result)
    return result


@functools.lru_cache(maxsize=256)
def _find_result_kind(function: Function) -> str:
    """Return the kind of a function's result: ``nothing``, ``number``, ``graph`` (its first argument), ``unknown``."""
    plain = function if isinstance(function, types.FunctionType) else type(function).__call__
    hint = _get_type_name(getattr(plain, "__annotations__", {}).get("return"))
    if hint:
        return {"int": "number", "bool": "number", **dict.fromkeys(_PASSES.graph_types, "graph")}.get(hint, "nothing")
    if isinstance(plain, types.FunctionType) and getattr(plain, "__annotations__", {}).get("return", 0) is None:
        return "nothing"
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(plain))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return "unknown"
    returned = [
        node.value for node in _iterate_own_nodes(tree) if isinstance(node, ast.Return) and node.value is not None
    ]
    first = next(iter(inspect.signature(function).parameters), "")
    if all(isinstance(value, ast.Constant) and value.value is None for value in returned):
        return "nothing"
    if all(isinstance(value, ast.Name) and value.id == first for value in returned):
        return "graph"
    if all(isinstance(value, ast.Name) and "count" in value.id for value in returned):
        return "number"
    return "unknown"


def _iterate_own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _iterate_own_nodes(child)


FUSION_PASSES = facts().custom_passes.fusion
JOINT_PASS = facts().custom_passes.joint


def wrap_observed_pass(
    recorder: Recorder, original: Function, observer: GraphTransformObserver, function: Function
) -> object:
    """A pass that runs under an observer, by which it has a name."""
    if not recorder.owns(observer.gm):
        return original(observer, function)
    table, own = getattr(function, "__self__", None), custom_code.find_installed_pass(function)
    container = hasattr(table, "patterns")
    if container:  # a user's config may hold the method as it was before it was wrapped
        function = getattr(table, function.__name__)
    if own is not None:
        label, container = own.make_label(recorder.stage_name), own.is_table
    elif not container and _is_custom(function, observer.passname):
        label = rule_labels.make_callable_label(function, recorder.stage_name, observer.passname)
    else:
        label = rule_labels.make_pass_label(function, recorder.stage_name, observer.passname)
    if recorder.refuses(label, container=container):
        return None
    with recorder.record_pass(label):
        return original(observer, function)


def _is_custom(function: Function, setting: str) -> bool:
    """Return whether ``function`` is the user's value of the config entry ``setting``.

    Inductor runs a pass of its own under the name of one of these entries as well.
    """
    given = getattr(load_config("inductor"), setting, None)
    plain = function.func if isinstance(function, functools.partial) else function
    listed = given if isinstance(given, (list, tuple)) else (given,)
    return any(custom is not None and (custom is function or custom is plain) for custom in listed)


def wrap_fusion_passes(
    recorder: Recorder, original: Function, scheduler: object, *args: object, **kwargs: object
) -> object:
    """The user's passes over the scheduler's nodes, which are no graph: seen and refused, not replayed."""
    config = load_config("inductor")
    given = {name: getattr(config, name, None) for name in FUSION_PASSES}
    watched = {name: _watch_fusion(recorder, name, function) for name, function in given.items() if callable(function)}
    with config.patch(watched) if watched else contextlib.nullcontext():
        return original(scheduler, *args, **kwargs)


def _watch_fusion(recorder: Recorder, name: str, function: Function) -> Function:
    label = rule_labels.make_callable_label(function, SCHEDULER, name)

    def fuse(original: Function, nodes: object) -> object:
        if recorder.refuses(label):
            return nodes
        with recorder.blame(label):
            result = original(nodes)
        recorder.ledger.unreplayed.append(label)
        recorder.count(label, "fired")
        return result

    shows = "passes over the scheduler's nodes"
    return contain_errors(recorder, lambda why: Unseen("fusion pass", why, (SCHEDULER,), shows), fuse, function)


def wrap_pattern_pass(
    recorder: Recorder, original: Function, patterns: PatternMatcherPass, graph: fx.Graph | fx.GraphModule
) -> object:
    """A table of patterns is applied."""
    if not recorder.owns(graph):
        return original(patterns, graph)
    pass_name = recorder.pass_name or getattr(patterns, "pass_name", None)
    with contextlib.ExitStack() as stack:
        for entry in custom_code.list_entries([patterns]):
            if not hasattr(entry.extra_check, rule_labels.OWN_CHECK):  # as it is in a pass that runs itself again
                stack.callback(_watch_entry(recorder, entry, pass_name))
        return original(patterns, graph)


def _watch_entry(recorder: Recorder, entry: PatternEntry, pass_name: str | None) -> Callable[[], None]:
    """Put another check, and another apply, in the place of an entry's; what is returned puts its own back.

    A veto belongs into the check and not into apply: the checks trace replacements and may raise themselves, and a
    match vetoed later would still be counted by passes that loop until nothing matches.
    """
    stage, own_apply, own_check = recorder.stage_name, vars(entry).get("apply"), entry.extra_check
    original_apply = entry.apply

    def make_unseen(why: str) -> Unseen:
        return Unseen("pattern entry", why, (stage,), "names and matches of patterns")

    label: Label | None = None

    def get_label() -> Label:  # it costs a look into closures: made for those that match something
        nonlocal label
        try:
            label = label or rule_labels.make_entry_label(entry, stage, pass_name)
        except Exception as error:  # a kind of entry that no torch has had yet; it goes by its class instead
            recorder.record_unseen(make_unseen(describe_error(error)), error)
            label = Label(stage, pass_name, type(entry).__name__)
        return label

    def run_check(original: Function, match: Match) -> bool:
        rule = get_label()
        if recorder.refuses(rule):
            return False
        accepted, why = False, ""
        try:
            with recorder.blame(rule):
                explains = is_explained(rule.stage, rule.rewrite)
                accepted, why = run_explained(original, match) if explains else (bool(original(match)), "")
        except Exception as error:
            why = f"its check raises {type(error).__name__}"
            raise
        finally:
            if not accepted:
                recorder.count(rule, "refused")
                recorder.ledger.checks.update([(rule, why)] if why else ())
        return accepted

    def check(match: Match) -> bool:
        return bool(run_contained(recorder, make_unseen, run_check, own_check, match))

    def run_apply(original: Function, match: Match, graph: fx.Graph, node: fx.Node) -> None:
        recorder.apply_pattern(get_label(), match, node, lambda: original(match, graph, node))

    def apply(*args: object) -> None:
        run_contained(recorder, make_unseen, run_apply, original_apply, *args)

    def restore() -> None:
        entry.extra_check = own_check
        vars(entry).pop("apply")
        vars(entry).update({} if own_apply is None else {"apply": own_apply})

    vars(check)[rule_labels.OWN_CHECK] = own_check
    entry.extra_check = check
    vars(entry)["apply"] = apply
    return restore


def wrap_dead_code(recorder: Recorder, original: Function, graph: fx.Graph, *args: object, **kwargs: object) -> object:
    """Dead code that the stage itself has removed; inside a pass, it is part of the pass."""
    if recorder.pass_name is not None or not recorder.owns(graph):
        return original(graph, *args, **kwargs)
    label = rule_labels.make_pass_label(original, recorder.stage_name, "eliminate_dead_code")
    if recorder.refuses(label):
        return False
    with recorder.record_pass(label, plain=True):
        return original(graph, *args, **kwargs)


def wrap_joint_pass(
    recorder: Recorder, original: Function, module: fx.GraphModule, *args: object, **kwargs: object
) -> object:
    """The user's pass over the joint graph that functorch's config has room for."""
    label = rule_labels.make_callable_label(original, JOINT_GRAPH, JOINT_PASS)
    if recorder.refuses(label):
        return module
    with recorder.set_direction("joint"), recorder.record_stage(JOINT_GRAPH, module) as finish:
        with recorder.record_pass(label):
            result = original(module, *args, **kwargs)
            recorder.record_result(module, result)
        finish(result)
    return result
