"""Functions of torch that change a graph and are run as no observed pass: found by their first parameter.

Inductor calls some of its passes straight (``quant_lift_up(gm)``, ``constant_fold(gm)``). Any function or callable
object that a module of passes holds by name, and that takes a graph first, is replaced for the time of a compile. While
no observed pass is under way, what it does to the graph that the stage works on is recorded under its name: the
innermost such function is the one that changed it. So a torch with other passes is read too.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence

from torch import fx

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.patching import Attempt, Function, Patch
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.facts import facts
from fuzzcompile.stage_names import GRAPH_STAGES, PARTITION

_PACKAGE = "torch._inductor.fx_passes"
_PASSES = facts().passes


def plain_patches(recorder: Recorder) -> Sequence[Patch[Recorder]]:
    """A patch for each such function of the modules loaded so far."""
    return _patches_of(_modules(len(sys.modules)))


def plain_passes() -> list[str]:
    """Names of the functions that are watched, of the modules loaded so far."""
    return sorted({patch.attribute for patch in _patches_of(_modules(len(sys.modules)))})


@functools.lru_cache(maxsize=1)
def _modules(loaded: int) -> tuple[types.ModuleType, ...]:
    """The modules that hold passes; looked for anew when as many as ``loaded`` are others."""
    return tuple(
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and (name.startswith(_PACKAGE) or name in _PASSES.modules)
    )


@functools.lru_cache(maxsize=4)
def _patches_of(modules: tuple[types.ModuleType, ...]) -> tuple[Patch[Recorder], ...]:
    return tuple(
        Patch(
            f"pass {name}",
            (*GRAPH_STAGES, PARTITION),
            f"changes of the graph by {name}",
            module.__name__,
            name,
            functools.partial(_wrap, name),
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
        parameters[1].rstrip("s").endswith("node") or _plain_name(hints.get(parameters[1])) == "Node"
    ):
        return False  # edits a node on behalf of a pass
    takes = parameters[0] in _PASSES.graph_parameters or _plain_name(hints.get(parameters[0])) in _PASSES.graph_types
    return takes and _plain_name(hints.get("return")) in ("", "None", "NoneType", "int", "bool", *_PASSES.graph_types)


def _plain_name(hint: object) -> str:
    """``Graph`` for an annotation ``torch.fx.Graph``, given as text or as a class."""
    text = "" if hint is None else hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    return text.rsplit(".", 1)[-1]


def _wrap(name: str, recorder: Recorder, original: Attempt) -> Function:
    by_rule, function = name in _PASSES.by_rule, original.__wrapped__

    def call(*args: object, **kwargs: object) -> object:
        graph = args[0] if args else None
        if not isinstance(graph, (fx.Graph, fx.GraphModule)):
            return original(*args, **kwargs)
        if not recorder.owns(graph):
            if not recorder.cuts_graphs or not isinstance(graph, fx.GraphModule):
                return original(*args, **kwargs)
            with recorder.part(graph):
                return call(*args, **kwargs)
        if recorder.in_observed_pass and not by_rule:
            return original(*args, **kwargs)
        label = _label(recorder, type(args[1]).__name__ if by_rule and len(args) > 1 else name, function)
        if recorder.refuses_plain(label, lambda: _without(function, graph) is not _CANNOT):
            return _without(function, graph)
        if by_rule:
            recorder.note_surrounding(label)
        with recorder.whole_pass(label, plain=not by_rule):
            result = original(*args, **kwargs)
            recorder.handed_on(graph, result)
        recorder.announce(label, graph, result)
        return result

    return call


def _label(recorder: Recorder, name: str, function: Function) -> Label:
    source, line = labels.source_of(function if hasattr(function, "__code__") else type(function).__call__)
    return Label(recorder.stage_name, recorder.pass_name if recorder.in_observed_pass else name, name, source, line)


class _Cannot:
    """No result is known that stands for a run that changed nothing."""


_CANNOT = _Cannot()


@functools.lru_cache(maxsize=256)
def _result_kind(function: Function) -> str:
    """Return the kind of a function's result: ``nothing``, ``number``, ``graph`` (its first argument), ``unknown``."""
    plain = function if isinstance(function, types.FunctionType) else type(function).__call__
    hint = _plain_name(getattr(plain, "__annotations__", {}).get("return"))
    if hint:
        return {"int": "number", "bool": "number", **dict.fromkeys(_PASSES.graph_types, "graph")}.get(hint, "nothing")
    if isinstance(plain, types.FunctionType) and getattr(plain, "__annotations__", {}).get("return", 0) is None:
        return "nothing"
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(plain))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return "unknown"
    returned = [node.value for node in _own_nodes(tree) if isinstance(node, ast.Return) and node.value is not None]
    first = next(iter(inspect.signature(function).parameters), "")
    if all(isinstance(value, ast.Constant) and value.value is None for value in returned):
        return "nothing"
    if all(isinstance(value, ast.Name) and value.id == first for value in returned):
        return "graph"
    if all(isinstance(value, ast.Name) and "count" in value.id for value in returned):
        return "number"
    return "unknown"


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


def _without(function: Function, graph: fx.Graph | fx.GraphModule) -> object:
    """Return the result that ``function`` gives where it changes nothing."""
    kind = _result_kind(function)
    return {"nothing": None, "number": 0, "graph": graph}.get(kind, _CANNOT)
