"""One expression or statement of the compiler's source replaced in the live functions of this process."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from fuzzcompile.compiler.source_probes import FunctionExchange, Position, place_at, recompile_file
from fuzzcompile.model.errors import UsageError

_REACHED = "\0fuzzcompile: the replacement was reached"
_SCOPES = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def replace_code(
    file: str, start: Position, end: Position, text: str, reached: Callable[[], object]
) -> FunctionExchange:
    """The functions of a file with one expression or statement replaced by ``text`` (empty: dropped).

    Names that the old code reads or binds stay known to the new one, so that closures keep their cells. ``reached`` is
    called each time the replacement is evaluated.
    """
    replacing = _CodeReplacer(start, end, text)
    result = recompile_file(file, replacing.visit, {_REACHED: reached})
    if not replacing.done:
        raise UsageError(f"{file}: no expression or statement stands from {start} to {end} in this torch.")
    if not result.exchanged:
        raise UsageError(f"{file}:{start[0]}: no live function runs this code, or its closure would change.")
    return result


class _CodeReplacer(ast.NodeTransformer):
    def __init__(self, start: Position, end: Position, text: str) -> None:
        self.place, self.text, self.done = (*start, *end), text, False

    def visit(self, node: ast.AST) -> Any:
        place = tuple(getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
        if self.done or place != self.place or not isinstance(node, ast.stmt | ast.expr):
            return super().generic_visit(node)
        self.done = True
        note = ast.Call(ast.Constant(_REACHED), [], [])
        if isinstance(node, ast.stmt):
            new = [ast.Expr(note), *ast.parse(self.text).body, ast.If(ast.Constant(False), [_make_mentions(node)], [])]
            return [place_at(statement, node) for statement in new]
        value = ast.parse(self.text, mode="eval").body
        mentioned = ast.Tuple(_collect_names(node, ast.Load), ast.Load())
        kept = ast.IfExp(ast.Constant(True), value, mentioned)
        # `replace_code` hands over a function that returns None.
        return place_at(ast.BoolOp(ast.Or(), [note, kept]), node)


def _make_mentions(node: ast.stmt) -> ast.stmt:
    bound = _collect_names(node, ast.Store)
    read = ast.Tuple(_collect_names(node, ast.Load), ast.Load())
    return ast.Assign(bound, read) if bound else ast.Expr(read)


def _collect_names(node: ast.AST, context: type[ast.Load | ast.Store]) -> list[ast.expr]:
    """The names that a node reads or binds, outside of the functions and comprehensions inside it."""
    names = (part for part in _iterate_own_nodes(node) if isinstance(part, ast.Name) and isinstance(part.ctx, context))
    return [ast.Name(name, context()) for name in sorted({part.id for part in names})]


def _iterate_own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield from _iterate_own_nodes(child)
