"""Functions of the compiler compiled anew from a changed syntax tree, and exchanged in memory.

A module's source is compiled twice: as it stands and changed. Both give code objects in the same tree, and a live
function whose code equals one of the first gets its counterpart of the second. That needs no unwrapping of decorators
and finds lambdas, methods, and closures that exist already. No file changes, and lines keep their numbers.
"""

from __future__ import annotations

import ast
import gc
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.errors import UsageError

ROOT = Path(torch.__file__).resolve().parent.parent
"""The folder that files of the compiler are named from: `torch/_inductor/ir.py`."""

_REACHED = "\0fuzzcompile: the replacement was reached"
Position = tuple[int, int]
"""A line, from 1, and a column in bytes, from 0."""
_SCOPES = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Transform = Callable[[ast.Module], ast.Module]


@dataclass
class Recompiled:
    """The functions of a file that a change concerns, with their code before and after.

    Attributes:
        file: the file, relative to `ROOT`.
        exchanged: each live function, its own code and the changed code.
        strangers: live functions of the file whose code is not that of its source; they keep it.
    """

    file: str
    exchanged: list[tuple[types.FunctionType, types.CodeType, types.CodeType]] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def install(self) -> None:
        """Give every function the changed code."""
        for function, _, changed in self.exchanged:
            function.__code__ = changed

    def remove(self) -> None:
        """Give every function its own code back."""
        for function, own, _ in self.exchanged:
            function.__code__ = own


def recompiled(file: str, change: Transform, constants: Mapping[str, object] | None = None) -> Recompiled:
    """Compile ``file`` with ``change`` applied to its tree, without installing anything.

    Args:
        file: relative to `ROOT`; its module is imported if need be.
        change: gets the tree, which it may change in place; must keep every function and lambda, and the order of them.
        constants: objects that stand in the changed code where the tree has these strings as constants.

    Raises:
        UsageError: there is no such module, it cannot be imported or parsed, or the change removes a function.
    """
    path = ROOT / file
    _import(file)
    own = compile(tree_of(file), str(path), "exec", dont_inherit=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a constant that is called is a placeholder
        changed = compile(change(tree_of(file)), str(path), "exec", dont_inherit=True)
    pairs = dict(_pairs(own, _with_constants(changed, constants or {}), file))
    result = Recompiled(file)
    for function in _live_functions(str(path)):
        after = pairs.get(function.__code__)
        if after is None:
            result.strangers.append(function.__qualname__)
        elif after != function.__code__ and after.co_freevars == function.__code__.co_freevars:
            result.exchanged.append((function, function.__code__, after))
        elif after != function.__code__:
            result.strangers.append(function.__qualname__)
    return result


def tree_of(file: str) -> ast.Module:
    """The syntax tree of a file, relative to `ROOT`.

    Raises:
        UsageError: it cannot be read or parsed.
    """
    try:
        return ast.parse((ROOT / file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"Cannot read {file} of the installed torch: {error}.") from error


def _import(file: str) -> None:
    name = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except Exception as error:  # a module for another platform may raise whatever it likes
        raise UsageError(f"{file} cannot be imported in this torch ({type(error).__name__}: {error}).") from error


def _pairs(own: types.CodeType, changed: types.CodeType, file: str) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    yield own, changed
    before, after = _nested(own), _nested(changed)
    if [code.co_name for code in before] != [code.co_name for code in after]:
        raise UsageError(f"The change to {file} adds or removes a function in {own.co_name}.")
    for pair in zip(before, after, strict=True):
        yield from _pairs(*pair, file)


def _nested(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _with_constants(code: types.CodeType, constants: Mapping[str, object]) -> types.CodeType:
    def replaced(value: object) -> object:
        if isinstance(value, types.CodeType):
            return _with_constants(value, constants)
        return constants.get(value, value) if isinstance(value, str) else value

    return code.replace(co_consts=tuple(replaced(value) for value in code.co_consts))


def _live_functions(path: str) -> list[types.FunctionType]:
    """Functions of the process whose code comes from the file; those that the collector was told to skip as well."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        listed = [item for item in gc.get_objects() if type(item) is types.FunctionType]
    finally:
        if frozen:
            gc.freeze()
    return [function for function in listed if function.__code__.co_filename == path]


def replaced(file: str, start: Position, end: Position, text: str, reached: Callable[[], object]) -> Recompiled:
    """The functions of a file with one expression or statement replaced.

    Names that the old code reads or binds stay known to the new one, so that closures keep their cells.

    Args:
        file: relative to `ROOT`.
        start: where the expression or statement starts: a line, from 1, and a column in bytes, from 0.
        end: where it ends.
        text: Python code for its place; empty to drop a statement.
        reached: called each time the replacement is evaluated.

    Raises:
        UsageError: nothing stands at that place, the change removes a function, or no live function runs that code.
    """
    replacing = _Replacing(start, end, text)
    result = recompiled(file, replacing.visit, {_REACHED: reached})
    if not replacing.done:
        raise UsageError(f"{file}: no expression or statement stands from {start} to {end} in this torch.")
    if not result.exchanged:
        raise UsageError(f"{file}:{start[0]}: no live function runs this code, or its closure would change.")
    return result


class _Replacing(ast.NodeTransformer):
    def __init__(self, start: Position, end: Position, text: str) -> None:
        self.place, self.text, self.done = (*start, *end), text, False

    def visit(self, node: ast.AST) -> Any:
        place = tuple(getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
        if self.done or place != self.place or not isinstance(node, ast.stmt | ast.expr):
            return super().generic_visit(node)
        self.done = True
        note = ast.Call(ast.Constant(_REACHED), [], [])
        if isinstance(node, ast.stmt):
            new = [ast.Expr(note), *ast.parse(self.text).body, ast.If(ast.Constant(False), [_mentions(node)], [])]
            return [_placed(statement, node) for statement in new]
        value = ast.parse(self.text, mode="eval").body
        kept = ast.IfExp(ast.Constant(True), value, _names(node))
        # `replaced` hands over a function that returns None.
        return _placed(ast.BoolOp(ast.Or(), [note, kept]), node)


def _mentions(node: ast.stmt) -> ast.stmt:
    """A statement that reads and binds the names that ``node`` does."""
    bound = {part.id for part in _own(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in sorted(bound)]
    return ast.Assign(targets, _names(node)) if targets else ast.Expr(_names(node))


def _names(node: ast.AST) -> ast.Tuple:
    """The names that a node reads, outside of the functions and comprehensions inside it."""
    names = {part.id for part in _own(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    return ast.Tuple([ast.Name(name, ast.Load()) for name in sorted(names)], ast.Load())


def _own(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield from _own(child)


def _placed(node: ast.AST, old: ast.stmt | ast.expr) -> Any:
    """The node and all in it on the line of the old one, so that tracebacks keep their lines."""
    for part in ast.walk(node):
        ast.copy_location(part, old)
    return ast.fix_missing_locations(node)
