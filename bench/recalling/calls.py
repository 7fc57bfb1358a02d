"""What a function of the compiler calls, by the live objects behind the names in it, decorators included."""

from __future__ import annotations

import ast
import functools
import importlib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzzcompile.compiler.source_probes import ROOT, parse_file
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.focus_plan import Span
from fuzzcompile.model.stages import find_file_stage

# Calls between a rule and the function that is looked for: within one file, and through others.
_WITHIN = 4
_ACROSS = 2
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def runs(starts: Sequence[Span], wanted: Span) -> bool:
    """Whether one of the functions calls the one wanted: over four calls in one file, or over two through others.

    Functions that have a line in common stand one in the other, and what a function makes is its work too.
    """
    return any(function.overlaps(wanted) for start in starts for function in _reached(start))


@functools.cache
def _reached(start: Span) -> frozenset[Span]:
    """The functions that a function calls, without itself."""
    reached: set[Span] = set()
    border = {start}
    for depth in range(1, _WITHIN + 1):
        called = {callee for caller in border for callee in called_by(caller)} - reached
        border = {callee for callee in called if depth <= _ACROSS or callee.file == start.file}
        reached |= border
        border = {callee for callee in border if depth < _ACROSS or callee.file == start.file}
    return frozenset(reached - {start})


@functools.cache
def called_by(caller: Span) -> tuple[Span, ...]:
    """The functions that a function mentions: by the objects behind the names, and by bare names within its file."""
    node = _functions(caller.file).get((caller.first, caller.last))
    module = _module(caller.file)
    if node is None:
        return ()
    called: dict[Span, None] = {}
    for part in ast.walk(node):
        if not isinstance(part, (ast.Name, ast.Attribute)):
            continue
        spans = tuple(spans_of(_object(part, module))) if module is not None else ()
        called.update(dict.fromkeys(spans or _by_name(caller.file, part)))
    called.pop(caller, None)
    return tuple(called)


def around(file: str, line: int) -> list[Span]:
    """The functions around a line, and what is called in their place: the wrappers of their decorators."""
    spans = [Span(file, *place) for place in _functions(file) if place[0] <= line <= place[1]]
    module = _module(file)
    names = [node.name for place, node in _functions(file).items() if place[0] <= line <= place[1]]
    wrappers = [span for name in names for span in spans_of(getattr(module, name, None))]
    return list(dict.fromkeys([*spans, *wrappers]))


def spans_of(target: object) -> Iterator[Span]:
    """The functions that a call of an object runs: its own code, what its decorators wrap, what its closure holds."""
    seen: set[int] = set()
    pending = [target]
    while pending:
        target = pending.pop()
        if not callable(target) or id(target) in seen:
            continue
        seen.add(id(target))
        code = getattr(target, "__code__", None)
        if isinstance(code, types.CodeType):
            yield from _span_of(code)
        pending += [getattr(target, name, None) for name in ("__wrapped__", "func", "__func__")]
        pending += [cell.cell_contents for cell in getattr(target, "__closure__", None) or () if _is_set(cell)]


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a closure whose function is still being made
        return False


def _span_of(code: types.CodeType) -> Iterator[Span]:
    path = Path(code.co_filename)
    file = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if find_file_stage(file) is None:
        return
    for (first, last), node in _functions(file).items():
        if min([first, *(decorator.lineno for decorator in node.decorator_list)]) == code.co_firstlineno:
            yield Span(file, first, last)


def _object(part: ast.expr, module: types.ModuleType | None) -> object:
    """The object that a dotted name of a module stands for; None where it is no attribute all along."""
    if isinstance(part, ast.Name):
        return getattr(module, part.id, None)
    if isinstance(part, ast.Attribute) and isinstance(part.value, (ast.Name, ast.Attribute)):
        owner = _object(part.value, module)
        return None if owner is None else getattr(owner, part.attr, None)
    return None


def _by_name(file: str, part: ast.Name | ast.Attribute) -> Iterator[Span]:
    name = part.id if isinstance(part, ast.Name) else part.attr
    return (Span(file, *place) for place, node in _functions(file).items() if node.name == name)


@functools.cache
def _functions(file: str) -> dict[tuple[int, int], ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file by their first and last lines."""
    try:
        tree = parse_file(file)
    except UsageError:
        return {}
    return {
        (node.lineno, node.end_lineno or node.lineno): node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)
    }


@functools.cache
def _module(file: str) -> types.ModuleType | None:
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        return importlib.import_module(name)
    except Exception:  # a module for another device, say: its functions go by their bare names
        return None
