"""Whether a report names the mutated place: its function, the rule that uses it, or its file."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from fuzzcompile.compiler.recompiling import tree_of
from fuzzcompile.errors import UsageError
from recalling.mutation import Mutation

Level = Literal["function", "rule", "file", ""]
_DEPTH = 4  # calls between a rule and the function that is mutated
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def named(mutation: Mutation, report: Mapping[str, Any]) -> Level:
    """How precisely culprit and contributors name the mutated place; empty if they do not.

    ``function``: the culprit stands in the mutated function or bears its name, or one of the innermost frames in which
    it raised is of that function. ``rule``: the function that the culprit stands in calls the mutated one, directly or,
    in one file, through other functions of it; or the mutated function is named for the culprit's operator. ``file``:
    the culprit, or what raised, stands in the mutated file.
    """
    places = [place for place in (report.get("culprit"), *(report.get("contributors") or ())) if place]
    raised = [frame for place in places for frame in place.get("details", {}).get("raised", ())]
    levels = [_level(mutation, place) for place in (*places, *raised[:1])]
    levels += [_in_function(mutation, frame) for frame in raised[1:]]
    return min(levels, key=("function", "rule", "file", "").index, default="")


def _in_function(mutation: Mutation, place: Mapping[str, Any]) -> Level:
    same_file, line = place.get("source") == mutation.file, place.get("line") or 0
    return "function" if same_file and mutation.lines[0] <= line <= mutation.lines[1] else ""


def _level(mutation: Mutation, place: Mapping[str, Any]) -> Level:
    own = mutation.function.split(".")
    same_file, line = place.get("source") == mutation.file, place.get("line") or 0
    names = {place.get("pass"), place.get("rewrite"), place.get("family"), *(place.get("siblings") or ())} - {None}
    if _in_function(mutation, place) or names & set(own):
        return "function"
    if place.get("source") and _uses(place["source"], line, frozenset(own) - {"<lambda>"}, _DEPTH if same_file else 1):
        return "rule"
    if any(_operator(str(name)) in {_operator(part) for part in own} for name in names):
        return "rule"
    return "file" if same_file else ""


def _operator(name: str) -> str:
    """``gelu`` of ``aten.gelu.default``, ``meta_gelu`` and ``_gelu``."""
    parts = name.split(".")
    plain = parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims", "quantized", "inductor") else parts[0]
    return plain.removeprefix("meta_").removesuffix("_meta").strip("_")


@functools.cache
def _calls(file: str) -> dict[str, tuple[int, int, frozenset[str]]]:
    """By name, each function of a file: its lines, and the names that it mentions."""
    try:
        tree = tree_of(file)
    except UsageError:
        return {}
    return {
        node.name: (node.lineno, node.end_lineno or node.lineno, frozenset(_mentioned(node)))
        for node in ast.walk(tree)
        if isinstance(node, _FUNCTIONS)
    }


def _mentioned(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _uses(file: str, line: int, names: frozenset[str], depth: int) -> bool:
    functions = _calls(file)
    reached = {name for name, (first, last, _) in functions.items() if first <= line <= last}
    for _ in range(depth):
        mentioned = {called for name in reached for called in functions[name][2]}
        if mentioned & names:
            return True
        reached |= mentioned & functions.keys()
    return False
