"""Passes that a stage of Inductor runs, and under which settings, read from the source of its function."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from torch._inductor.pattern_matcher import PatternMatcherPass

from fuzzcompile.model.facts import facts

_PASSES = facts().passes
_DEEPEST = 3
IsPass = Callable[[types.FunctionType], bool]


@dataclass(frozen=True)
class PassCall:
    """A place where a stage runs a pass."""

    name: str
    target: object  # the function or pattern table; None if only a compile determines it
    when: tuple[str, ...]  # the conditions around the call, as source
    on: bool  # whether none of them fails under the present settings; those that depend on a graph count as fulfilled


def is_pattern_table(value: object) -> TypeGuard[PatternMatcherPass]:
    """Return whether ``value`` is a table of patterns."""
    return isinstance(value, PatternMatcherPass)


def list_pass_calls(function: Callable[..., object], is_pass: IsPass) -> list[PassCall]:
    """The passes that ``function`` runs, each once, in the order of its source; those inside passes are included."""
    calls: dict[tuple[str, int], PassCall] = {}
    for call in _PassReader(function, is_pass, 0).read():
        key = (call.name, id(call.target))
        if key not in calls or (call.on and not calls[key].on):
            calls[key] = call
    return list(calls.values())


_Conditions = Mapping[str, bool | None]
"""Conditions that all hold where a statement runs, as source, each with its value under the present settings."""


def _make_call(conditions: _Conditions, name: str, target: object) -> PassCall:
    return PassCall(name, target, tuple(conditions), False not in conditions.values())


class _PassReader:
    def __init__(self, function: Callable[..., object], is_pass: IsPass, depth: int) -> None:
        self.function: Callable[..., object] = inspect.unwrap(function)
        self.is_pass, self.depth = is_pass, depth
        self.names: dict[str, object] = dict(getattr(self.function, "__globals__", {}))
        self._titles: dict[int, str] = {}  # of tables that have no name of their own

    def read(self) -> Iterator[PassCall]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(self.function)))
        except (OSError, TypeError, SyntaxError):
            return
        defined = tree.body[0]
        if isinstance(defined, ast.FunctionDef):
            yield from self._read_block(defined.body, {})

    def _read_block(self, body: Sequence[ast.stmt], conditions: _Conditions) -> Iterator[PassCall]:
        for statement in body:
            if isinstance(statement, ast.If):
                holds = self._evaluate_condition(statement.test)
                yield from self._read_block(statement.body, {**conditions, ast.unparse(statement.test): holds})
                negated = ast.unparse(ast.UnaryOp(ast.Not(), statement.test))
                otherwise = {**conditions, negated: None if holds is None else not holds}
                yield from self._read_block(statement.orelse, otherwise)
                if isinstance(statement.body[-1], ast.Return):
                    conditions = otherwise
            elif isinstance(statement, ast.For):
                yield from self._read_loop(statement, conditions)
            elif isinstance(statement, ast.With):
                names = (self._read_observed_name(item.context_expr) for item in statement.items)
                name = next(filter(None, names), None)
                if name is None:
                    yield from self._read_block(statement.body, conditions)
                    continue
                inner = [node for part in statement.body for node in ast.walk(part) if isinstance(node, ast.Call)]
                target = next(filter(None, (self._resolve(call.func) for call in inner)), None)
                yield _make_call(conditions, name, target)
            elif isinstance(statement, ast.Try):
                yield from self._read_block(statement.body, conditions)
            elif isinstance(statement, ast.ImportFrom):
                package = self.function.__module__.rpartition(".")[0]
                with contextlib.suppress(Exception):  # the import fails in the compiler too, so nothing from it runs
                    module = importlib.import_module("." * statement.level + (statement.module or ""), package)
                    for alias in statement.names:
                        self.names[alias.asname or alias.name] = getattr(module, alias.name)
            elif not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    listed = self._resolve_list(statement.value)
                    self._assign(statement.targets[0] if listed else None, listed)
                yield from self._read_calls(statement, conditions)

    def _read_loop(self, loop: ast.For, conditions: _Conditions) -> Iterator[PassCall]:
        listed, targets, number = loop.iter, [loop.target], None
        called = _get_called_name(listed) if isinstance(listed, ast.Call) else None
        if isinstance(listed, ast.Call) and called == "enumerate" and isinstance(loop.target, ast.Tuple):
            listed, number, targets = listed.args[0], loop.target.elts[0], list(loop.target.elts[1:])
        passes = self._resolve(listed)
        if isinstance(passes, list) and passes and all(is_pattern_table(value) or callable(value) for value in passes):
            tables = all(map(is_pattern_table, passes))
            for index, value in enumerate(passes):
                self._assign(targets[0], value)
                self._assign(number, index)
                if isinstance(listed, ast.Name):
                    self._titles[id(value)] = f"{listed.id.removesuffix('s')}_{index}"
                yield from self._read_block(loop.body, conditions)
                if not tables:
                    name = getattr(value, "pass_name", None) or getattr(value, "__name__", "?")
                    yield _make_call(conditions, str(name), value)
            return
        if called != "range":
            conditions = {**conditions, ast.unparse(listed): self._evaluate_condition(listed)}
        yield from self._read_block(loop.body, conditions)

    def _read_calls(self, statement: ast.stmt, conditions: _Conditions) -> Iterator[PassCall]:
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _PASSES.observed:
                name = self._read_observed_name(call.func.value)
                if name is not None and call.args:
                    yield _make_call(conditions, name, self._resolve(call.args[0]))
                return  # what stands inside is what the observer runs
            yield from self._read_plain_call(call, conditions)

    def _read_plain_call(self, call: ast.Call, conditions: _Conditions) -> Iterator[PassCall]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "apply":
            table = self._resolve(call.func.value)
            if is_pattern_table(table):
                title = self._titles.get(id(table), ast.unparse(call.func.value))
                if title == "patterns" and self.depth:  # its module's only one: its function says more
                    title = self.function.__name__
                yield _make_call(conditions, getattr(table, "pass_name", None) or title, table)
            return
        target = self._resolve(call.func)
        over_graph = call.args and ast.unparse(call.args[0]).partition(".")[0] in _PASSES.graph_variables
        if not over_graph or not inspect.isfunction(target) or not self.is_pass(target):
            return
        reader = _PassReader(target, self.is_pass, self.depth + 1)
        inside = list(reader.read()) if self.depth < _DEEPEST else []
        if all(inner.name != target.__name__ for inner in inside):
            yield _make_call(conditions, target.__name__, target)
        for inner in inside:
            when = dict.fromkeys((*conditions, *inner.when))
            yield PassCall(inner.name, inner.target, tuple(when), inner.on and False not in conditions.values())

    def _read_observed_name(self, node: ast.expr) -> str | None:
        if not isinstance(node, ast.Call) or _get_called_name(node) != _PASSES.observer or len(node.args) < 2:
            return None
        name = self._resolve(node.args[1])
        return name if isinstance(name, str) else None

    # -- values -----------------------------------------------------------------------------------

    def _resolve(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            if node.attr == "apply" and is_pattern_table(owner):
                return owner
            with contextlib.suppress(Exception):  # a property of torch may raise anything
                return getattr(owner, node.attr, None)
        if isinstance(node, ast.JoinedStr):
            pieces = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
            parts = [self._resolve(piece) for piece in pieces]
            return None if None in parts else "".join(map(str, parts))
        if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):
            return self._resolve(node.body.func)
        if isinstance(node, ast.Call) and _get_called_name(node) == "partial" and node.args:
            return self._resolve(node.args[0])
        return None

    def _resolve_list(self, node: ast.expr) -> list[object]:
        if isinstance(node, ast.List):
            return [value for value in map(self._resolve, node.elts) if value is not None]
        if isinstance(node, ast.BinOp):
            return [*self._resolve_list(node.left), *self._resolve_list(node.right)]
        listed = self._resolve(node)
        return listed if isinstance(listed, list) else []

    def _assign(self, target: ast.expr | None, value: object) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value

    def _evaluate_condition(self, test: ast.expr) -> bool | None:
        if isinstance(test, ast.BoolOp):
            parts = [self._evaluate_condition(part) for part in test.values]
            decided = isinstance(test.op, ast.Or)
            if decided in parts:
                return decided
            return None if None in parts else not decided
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._evaluate_condition(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.NamedExpr):
            return self._evaluate_condition(test.value)
        for node in ast.walk(test):
            if isinstance(node, ast.Call) and _get_called_name(node) not in _PASSES.condition_calls:
                return None
            if isinstance(node, (ast.NamedExpr, ast.Lambda)):
                return None
        with contextlib.suppress(Exception):  # it may use a name that exists at run time alone, in any way
            return bool(eval(compile(ast.Expression(test), "<condition>", "eval"), dict(self.names)))
        return None


def _get_called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
