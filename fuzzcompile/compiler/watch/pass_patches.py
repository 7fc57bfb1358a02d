"""Wrappers of the functions through which Inductor runs passes and patterns, plain functions over graphs included."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import fx

from fuzzcompile.compiler import custom_code
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.ledger import Label, Unseen, format_reason
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.compiler.watch.rule_labels import is_explained, run_explained
from fuzzcompile.compiler.watch.torch_patch import Function, OriginalCall, Patch, contain_errors, run_contained
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import GRAPH_STAGES, JOINT_GRAPH, PARTITION, SCHEDULER

if TYPE_CHECKING:
    from torch._inductor.pattern_matcher import Match, PatternEntry, PatternMatcherPass
    from torch.fx.passes.graph_transform_observer import GraphTransformObserver


# Functions of torch that change a graph and are run as no observed pass: found by their first parameter.

_PACKAGE = "torch._inductor.fx_passes"
_PASSES = facts().passes


def list_plain_patches(recorder: Recorder) -> Sequence[Patch[Recorder]]:
    """A patch for each such function of the modules loaded so far."""
    return _make_patches(_list_modules(len(sys.modules)))


def list_plain_passes() -> list[str]:
    """Names of the functions that are watched, of the modules loaded so far."""
    return sorted({patch.attribute for patch in _make_patches(_list_modules(len(sys.modules)))})


@functools.lru_cache(maxsize=1)
def _list_modules(loaded: int) -> tuple[types.ModuleType, ...]:
    """The modules that hold passes; looked for anew when as many as ``loaded`` are others."""
    return tuple(
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and (name.startswith(_PACKAGE) or name in _PASSES.modules)
    )


@functools.lru_cache(maxsize=4)
def _make_patches(modules: tuple[types.ModuleType, ...]) -> tuple[Patch[Recorder], ...]:
    return tuple(
        Patch(
            f"pass {name}",
            (*GRAPH_STAGES, PARTITION),
            f"changes of the graph by {name}",
            module.__name__,
            name,
            functools.partial(_run_plain, name),
        )
        for module in modules
        for name, value in list(vars(module).items())
        if _changes_graphs(name, value)
    )


def _changes_graphs(name: str, value: object) -> bool:
    """Return whether ``value`` takes a graph first and gives back nothing, a number or a graph."""
    if name in _PASSES.stages or name.lstrip("_").startswith(_PASSES.reading):
        return False
    own = isinstance(value, types.FunctionType)
    if not own and not type(value).__module__.startswith(_PACKAGE):
        return False
    function = value if own else vars(type(value)).get("__call__")
    if not isinstance(function, types.FunctionType) or not function.__module__.startswith("torch."):
        return False
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount][0 if own else 1 :]
    if not parameters:
        return False
    hints = function.__annotations__
    if len(parameters) > 1 and (
        parameters[1].rstrip("s").endswith("node") or _get_type_name(hints.get(parameters[1])) == "Node"
    ):
        return False  # edits a node on behalf of a pass
    takes = parameters[0] in _PASSES.graph_parameters or _get_type_name(hints.get(parameters[0])) in _PASSES.graph_types
    return takes and _get_type_name(hints.get("return")) in (
        "",
        "None",
        "NoneType",
        "int",
        "bool",
        *_PASSES.graph_types,
    )


def _get_type_name(hint: object) -> str:
    """``Graph`` for an annotation ``torch.fx.Graph``, given as text or as a class."""
    text = "" if hint is None else hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    return text.rsplit(".", 1)[-1]


def _run_plain(name: str, recorder: Recorder, original: OriginalCall, *args: object, **kwargs: object) -> object:
    by_rule, function, graph = name in _PASSES.by_rule, original.__wrapped__, args[0] if args else None
    if not isinstance(graph, (fx.Graph, fx.GraphModule)):
        return original(*args, **kwargs)
    if not recorder.owns(graph):
        if recorder.stage_name != PARTITION or not isinstance(graph, fx.GraphModule):
            return original(*args, **kwargs)
        with recorder.record_partition(graph, part=True):
            return _run_plain(name, recorder, original, *args, **kwargs)
    if recorder.in_observed_pass and not by_rule:
        return original(*args, **kwargs)
    rewrite = type(args[1]).__name__ if by_rule and len(args) > 1 else name
    source, line = rule_labels.find_source(function if hasattr(function, "__code__") else type(function).__call__)
    within = recorder.pass_name if recorder.in_observed_pass else rewrite
    label = Label(recorder.stage_name, within, rewrite, source, line)
    # What stands for a run that changed nothing, by the kind of the function's result.
    unchanged = {"nothing": None, "number": 0, "graph": graph}
    if recorder.refuses_plain(label, lambda: _find_result_kind(function) in unchanged):
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
    """The nodes of a function without those of functions inside it."""
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
    if recorder.refuses_pass(label, container=container):
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

    def make_unseen(why: str) -> Unseen:
        return Unseen("fusion pass", why, (SCHEDULER,), "passes over the scheduler's nodes")

    def fuse(original: Function, nodes: object) -> object:
        if recorder.refuses(label):
            return nodes
        with recorder.blame(label):
            result = original(nodes)
        recorder.ledger.unreplayed.append(label)
        recorder.count(label, "fired")
        return result

    return contain_errors(recorder, make_unseen, fuse, function)


def wrap_pattern_pass(
    recorder: Recorder, original: Function, patterns: PatternMatcherPass, graph: fx.Graph | fx.GraphModule
) -> object:
    """A table of patterns is applied."""
    if not recorder.owns(graph):
        return original(patterns, graph)
    pass_name = recorder.pass_name or getattr(patterns, "pass_name", None)
    watched: list[_WatchedEntry] = []
    try:
        for entry in custom_code.list_entries([patterns]):
            if type(entry.extra_check) is not _WatchedEntry:  # as it is in a pass that runs itself again
                watched.append(_WatchedEntry(recorder, entry, pass_name))
        return original(patterns, graph)
    finally:
        for watching in watched:
            watching.restore()


class _WatchedEntry:
    """The check that an entry of a pattern table has while its table is applied; also puts an apply in its place.

    A veto belongs into the check and not into apply: the checks trace replacements and may raise themselves, and a
    match vetoed later would still be counted by passes that loop until nothing matches.
    """

    __slots__ = ("__wrapped_check__", "_apply", "_entry", "_label", "_own", "_pass_name", "_recorder", "_stage")

    def __init__(self, recorder: Recorder, entry: PatternEntry, pass_name: str | None) -> None:
        self._recorder, self._entry, self._pass_name = recorder, entry, pass_name
        self._stage = recorder.stage_name
        self._label: Label | None = None
        self._own = entry.__dict__.get("apply")
        self.__wrapped_check__, self._apply = entry.extra_check, entry.apply
        entry.extra_check, entry.apply = self, self.apply  # type: ignore[method-assign]

    def restore(self) -> None:
        self._entry.extra_check = self.__wrapped_check__
        if self._own is None:
            del self._entry.__dict__["apply"]
        else:
            self._entry.apply = self._own  # type: ignore[method-assign]

    def get_label(self) -> Label:
        """Name of the entry, which costs a look into closures: made for those that match something."""
        if self._label is None:
            try:
                self._label = rule_labels.make_entry_label(self._entry, self._stage, self._pass_name)
            except Exception as error:  # a kind of entry that no torch has had yet; it goes by its class instead
                self._recorder.record_unseen(self._make_unseen(format_reason(error)), error)
                self._label = Label(self._stage, self._pass_name, type(self._entry).__name__)
        return self._label

    def __call__(self, match: Match) -> bool:
        return bool(run_contained(self._recorder, self._make_unseen, self._check, self.__wrapped_check__, match))

    def _check(self, check: Function, match: Match) -> bool:
        label = self.get_label()
        if self._recorder.refuses(label):
            return False
        with self._recorder.blame(label):
            explains = is_explained(label.stage, label.rewrite)
            accepted, why = run_explained(check, match) if explains else (bool(check(match)), "")
        if not accepted:
            self._recorder.count(label, "refused")
            self._recorder.ledger.checks.update([(label, why)] if why else ())
        return accepted

    def apply(self, match: Match, graph: fx.Graph, node: fx.Node) -> None:
        run_contained(self._recorder, self._make_unseen, self._apply_recorded, self._apply, match, graph, node)

    def _apply_recorded(self, original: Function, match: Match, graph: fx.Graph, node: fx.Node) -> None:
        self._recorder.apply_pattern(self.get_label(), match, node, lambda: original(match, graph, node))

    def _make_unseen(self, why: str) -> Unseen:
        return Unseen("pattern entry", why, (self._stage,), "names and matches of patterns")


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
