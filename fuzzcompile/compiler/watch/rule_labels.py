"""Stable names for rewrite rules, their source, and the checks that refused their matches."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import fx

from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.model.conditions import matches_veto
from fuzzcompile.model.custom import is_custom
from fuzzcompile.model.facts import facts
from fuzzcompile.run.code_files import shorten_file

#: Attribute of a check that stands in the place of an entry's own, which it holds.
OWN_CHECK = "__wrapped_check__"
_NAMES = facts().names
_VARIANT = re.compile(rf"({'|'.join(_NAMES.variants)})+$")
_NUMBERED = re.compile(r"^_*(?P<family>\w+?)_pattern_\d+$")
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in [^\n]*\n(?P<code>[^\n]*))?')


def make_entry_label(entry: Any, stage: str, pass_name: str | None) -> Label:
    """Label of a pattern matcher entry."""
    # By the registered name where torch gives one, by the search function of a replacement, else by the handler.
    check = getattr(entry, "extra_check", None)
    searching = _read_closure(getattr(check, OWN_CHECK, check)).get(_NAMES.search_function)
    function = (searching and searching.cell_contents) or getattr(entry, "handler", None)
    name = getattr(entry, "pattern_name", None) or _get_function_name(function)
    if name is None:
        targets = getattr(entry.pattern, "fns_repr", lambda: "")()
        name = f"{type(entry.pattern).__name__}_{targets}"
    return Label(stage, pass_name, name, *find_source(function))


def make_pass_label(function: Callable[..., Any] | None, stage: str, pass_name: str) -> Label:
    """Label of a whole pass, run as ``function`` under the name ``pass_name``."""
    return Label(stage, pass_name, pass_name, *find_source(function))


def make_callable_label(function: Any, stage: str, pass_name: str | None) -> Label:
    """Label of a user's own pass: a function, or an object that is called, which goes by its class."""
    plain = _unwrap_function(function)
    code, name = (plain, _get_function_name(plain)) if hasattr(plain, "__code__") else (type(plain).__call__, None)
    return Label(stage, pass_name, name or type(plain).__name__, *find_source(code))


def find_source(function: Any) -> tuple[str | None, int | None]:
    """File (relative to site-packages, ``torch/_inductor/…``) and first line of a function."""
    code = getattr(_unwrap_function(function), "__code__", None)
    return (None, None) if code is None else (shorten_file(code.co_filename), code.co_firstlineno)


def get_base_name(rewrite: str) -> str:
    """A pattern's name without its variant: ``_sfdp_pattern_28_half_inference`` → ``_sfdp_pattern_28``."""
    return _VARIANT.sub("", rewrite)


def get_family(rewrite: str) -> str:
    """The family of a rewrite: numbered siblings stand in for each other (``_sfdp_pattern_3`` → ``sfdp``)."""
    base = get_base_name(rewrite).rpartition(":")[2]  # of a user's own pass without its module
    match = _NUMBERED.match(base)
    return match["family"] if match else base


def make_family_veto(stage: str, rewrite: str) -> str:
    """Return the name for `is_vetoed` that refuses a rewrite of a stage with its whole family (`get_family`)."""
    base = get_base_name(rewrite)
    match = _NUMBERED.match(base)
    return f"{stage}:{base[: match.end('family')]}_pattern_*" if match else f"{stage}:={base}"


def is_vetoed(label: Label, wanted: Iterable[str]) -> bool:
    """Return whether one of the names in ``wanted`` means this label.

    A name is exact (``remove_noop_ops``), a leading part that ends at an underscore or at the end
    (``_sfdp``, ``_sfdp_pattern_1``: not ``_sfdp_pattern_11``), or a glob; ``stage:`` before it restricts it
    to one stage, and ``=`` before the name to that rule and its variants (``=addmm``: not ``addmm_pattern``).
    A pass of the user's own, with its patterns, goes by ``module:attribute`` too.
    """
    for name in wanted:
        stage, rest = name.split(":", 1) if ":" in name else (label.stage, name)
        if is_custom(label.pass_name) and name == label.pass_name:
            return True
        if stage == label.stage and matches_veto(label.rewrite, get_base_name(label.rewrite), rest):
            return True
    return False


def find_location(nodes: Iterable[fx.Node]) -> str | None:
    """``file.py:line`` of the user's source behind the nodes, from the last node that knows it."""
    return next((source for node in reversed(list(nodes)) if (source := find_user_line(node)[0])), None)


def find_user_line(node: fx.Node) -> tuple[str | None, str | None]:
    """``file.py:12`` of the user's program behind the node, and what stands there; None where it is not known."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return None, None
    return f"{Path(frames[-1]['path']).name}:{frames[-1]['line']}", (frames[-1]["code"] or "").strip() or None


def _read_closure(function: Any) -> dict[str, types.CellType]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return dict(zip(names, getattr(function, "__closure__", None) or (), strict=False))


def _unwrap_function(function: Any) -> Any:
    if isinstance(function, functools.partial):
        # Inductor's Triton code generator routes float64 by partials that hold the function for other dtypes.
        return _unwrap_function(function.keywords.get("_original_impl", function.func))
    for name in ("__wrapped__", "__func__"):
        if hasattr(function, name):
            return _unwrap_function(getattr(function, name))
    cells = _read_closure(function)
    if "func" in cells and function.__code__.co_name == "wrapped":  # its upcasting decorator
        return _unwrap_function(cells["func"].cell_contents)
    # A wrapper that only gives a partial a plain signature, as the SDPA patterns have it.
    held = cells[_NAMES.partial].cell_contents if set(cells) == {_NAMES.partial} else None
    return _unwrap_function(held) if isinstance(held, functools.partial) else function


def _get_function_name(function: Any) -> str | None:
    function = _unwrap_function(function)
    name = getattr(function, "__name__", None)
    if name in _NAMES.nameless and "<locals>" in function.__qualname__:
        return str(function.__qualname__).split(".<locals>")[0]  # the factory that made it
    if name == "<lambda>":
        _, line = find_source(function)
        return f"lambda_line_{line}"
    return name


# Checks that refused a match, and their failing conditions: only for a few rules, because the check is traced.

_LONGEST = 90
_INSIDE = "torch/_inductor/"
_Return = tuple[types.CodeType, int]
_explained: set[tuple[str, str]] = set()


@contextlib.contextmanager
def explain_refusals(rules: Collection[tuple[str, str]]) -> Iterator[None]:
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


def run_explained(check: Callable[..., object], match: object) -> tuple[bool, str]:
    """Run a check on a match: whether it accepts, and if not the failed condition, as ``is_valid: ... (a.py:17)``.

    That is empty where a debugger or a coverage tool traces this thread already, or the check gave no ``False``.
    """
    if sys.gettrace() is not None:
        return bool(check(match)), ""
    refusals: list[_Return] = []

    def trace_return(frame: types.FrameType, event: str, value: object) -> object:
        if event == "return" and value is False:
            refusals.append((frame.f_code, frame.f_lineno))
        return trace_return

    def trace_call(frame: types.FrameType, event: str, value: object) -> object:
        outside = not shorten_file(frame.f_code.co_filename).startswith(_INSIDE)
        if outside or frame.f_code.co_name.startswith("<genexpr"):
            return None
        frame.f_trace_lines = False
        return trace_return

    sys.settrace(trace_call)  # type: ignore[arg-type]  # a tracer that returns itself has no type
    try:
        accepted = bool(check(match))
    finally:
        sys.settrace(None)
    return accepted, "" if accepted else _find_condition(refusals)


def _find_condition(refusals: list[_Return]) -> str:
    """The innermost check whose refusal was handed on to the end, and its condition."""
    if not refusals:
        return ""
    code, line = refusals[-1]
    for inner, at in reversed(refusals[:-1]):
        statement = _find_statement(code.co_filename, line)
        if statement is None or inner.co_name not in ast.unparse(statement):
            break
        code, line = inner, at
    # The condition under which the statement is reached, or what it returns where that says more.
    statement = _find_statement(code.co_filename, line)
    if isinstance(statement, ast.Return) and not isinstance(statement.value, (ast.Constant, type(None))):
        condition = ast.unparse(statement.value)
    else:
        nodes = [node for node in _parse_nodes(code.co_filename) if isinstance(node, ast.If)]
        inside = [node for node in nodes if _contains_line(node.body, line)]
        condition = ast.unparse(max(inside, key=lambda node: node.lineno).test) if inside else ""
    condition = " ".join(condition.split())
    condition = condition if len(condition) <= _LONGEST else f"{condition[: _LONGEST - 4]} ..."
    return f"{code.co_name}{': ' * bool(condition)}{condition} ({Path(code.co_filename).name}:{line})"


def _find_statement(file: str, line: int) -> ast.stmt | None:
    met = [node for node in _parse_nodes(file) if isinstance(node, ast.stmt) and _contains_line([node], line)]
    return max(met, key=lambda node: node.lineno, default=None)


@functools.lru_cache(maxsize=16)
def _parse_nodes(file: str) -> list[ast.AST]:
    with contextlib.suppress(SyntaxError):
        return list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    return []


def _contains_line(block: list[ast.stmt], line: int) -> bool:
    return block[0].lineno <= line <= (block[-1].end_lineno or line)
