"""Checks that refused a match, and their failing conditions: only for a few rules, because the check is traced."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import types
from collections.abc import Callable, Collection, Iterator

from fuzzcompile.compiler.labels import shown_file

_LONGEST = 90
_INSIDE = "torch/_inductor/"
Rule = tuple[str, str]
Return = tuple[types.CodeType, int]

_explained: set[Rule] = set()


@contextlib.contextmanager
def explaining(rules: Collection[Rule]) -> Iterator[None]:
    """Within the block, ledgers say which check refused these rules, given by stage and name."""
    before = set(_explained)
    _explained.update(rules)
    try:
        yield
    finally:
        _explained.intersection_update(before)


def is_explained(stage: str, rewrite: str) -> bool:
    """Return whether refusals of a rule are explained."""
    return (stage, rewrite) in _explained


def explained(check: Callable[..., object], match: object) -> tuple[bool, str]:
    """Run a check on a match.

    Returns:
        Whether it accepts, and if not the condition that failed: ``is_valid_addmm_fusion: ... (post_grad.py:1785)``.
        Empty where a debugger or a coverage tool traces this thread already, or the check answered without ``False``.
    """
    if sys.gettrace() is not None:
        return bool(check(match)), ""
    refusals: list[Return] = []

    def within(frame: types.FrameType, event: str, value: object) -> object:
        if event == "return" and value is False:
            refusals.append((frame.f_code, frame.f_lineno))
        return within

    def enter(frame: types.FrameType, event: str, value: object) -> object:
        if not shown_file(frame.f_code.co_filename).startswith(_INSIDE) or frame.f_code.co_name.startswith("<genexpr"):
            return None
        frame.f_trace_lines = False
        return within

    sys.settrace(enter)  # type: ignore[arg-type]  # a tracer that returns itself has no type
    try:
        accepted = bool(check(match))
    finally:
        sys.settrace(None)
    return accepted, "" if accepted else _condition(refusals)


def _condition(refusals: list[Return]) -> str:
    """The innermost check whose refusal was handed on to the end, and its condition."""
    if not refusals:
        return ""
    code, line = refusals[-1]
    for inner, at in reversed(refusals[:-1]):
        if inner.co_name not in _statement(code.co_filename, line):
            break
        code, line = inner, at
    file = shown_file(code.co_filename)
    condition = _shortened(_failed(code.co_filename, line))
    return f"{code.co_name}{': ' * bool(condition)}{condition} ({file.rpartition('/')[2]}:{line})"


def _failed(file: str, line: int) -> str:
    """The condition under which the statement at a line is reached, or what it returns where that says more."""
    statement = _at(file, line)
    if isinstance(statement, ast.Return) and not isinstance(statement.value, (ast.Constant, type(None))):
        return ast.unparse(statement.value)
    inside = [node for node in _nodes(file) if isinstance(node, ast.If) and _holds(node.body, line)]
    return ast.unparse(max(inside, key=lambda node: node.lineno).test) if inside else ""


def _statement(file: str, line: int) -> str:
    statement = _at(file, line)
    return "" if statement is None else ast.unparse(statement)


def _at(file: str, line: int) -> ast.stmt | None:
    """The innermost statement that has the line."""
    met = [node for node in _nodes(file) if isinstance(node, ast.stmt) and _holds([node], line)]
    return max(met, key=lambda node: node.lineno, default=None)


@functools.lru_cache(maxsize=16)
def _nodes(file: str) -> list[ast.AST]:
    with contextlib.suppress(SyntaxError):
        return list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    return []


def _holds(block: list[ast.stmt], line: int) -> bool:
    return block[0].lineno <= line <= (block[-1].end_lineno or line)


def _shortened(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 4]} ..."
