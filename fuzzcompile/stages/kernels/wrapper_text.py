"""Flaws of a generated program that raises by itself, as far as its own text shows them. Needs no torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from fuzzcompile.execution.observation import GeneratedPlace

_NAME = re.compile(r"name '(\w+)' is not defined|(?:local )?variable '(\w+)'")
_ORIGIN = re.compile(r"# .*Original ATen: \[([^\]]*)\]")
_KERNEL = re.compile(r"\b\w+?_fused_(\w+?)_\d+\b")
_ASSERTED = re.compile(r"assert_size_stride\((\w+), .*'torch\.ops\.([\w.]+)'\)")
_TANGENT = "tangents_"


class Flaw(Enum):
    """Flaw of a generated program, in the words of a report."""

    EARLY = "reads a variable before it is assigned"
    FREED = "reads a variable after it was deleted"
    MISSING = "reads a variable that is assigned nowhere"
    INPUTS = "gets another number of inputs than it has"
    LAYOUT = "asserts sizes and strides that the result of an operator has not"


@dataclass(frozen=True)
class Flawed:
    """The flaw at the line that raised.

    Attributes:
        flaw: its kind.
        variable: the variable that is read; empty for inputs.
        statement: the line that raised.
        elsewhere: the line that assigns the variable later or deleted it; empty where there is none.
        operators: those that the lines of the variable compute, as the program's comments and kernels call them.
        backward: whether this is the program of a backward pass.
        written: whether the line that raised is the one that was to write the variable.
    """

    flaw: Flaw
    variable: str
    statement: str
    elsewhere: str
    operators: tuple[str, ...]
    backward: bool
    written: bool = False

    @property
    def reused(self) -> bool:
        """Return whether the memory of the variable was given to another buffer."""
        return "# reuse" in self.elsewhere

    @property
    def of_buffer(self) -> bool:
        """Return whether the variable is a result of the program's own."""
        return self.variable.startswith("buf")


def flaw_of(place: GeneratedPlace, error: str) -> Flawed | None:
    """The flaw of the program at the place where it raised; None if its text does not explain the error.

    Args:
        place: where it raised.
        error: type and message of what was raised.
    """
    try:
        tree = ast.parse(place.source)
    except (SyntaxError, ValueError):
        return None
    function = _around(tree, place.line)
    if function is None:
        return None
    lines = place.source.splitlines()
    kind, _, message = error.partition(": ")
    backward = any(name.startswith(_TANGENT) for name in _inputs(function))
    statement = lines[place.line - 1].strip()
    if kind == "ValueError" and "values to unpack" in message and statement.endswith("= args"):
        return Flawed(Flaw.INPUTS, "", statement, "", (), backward)
    asserted = _ASSERTED.match(statement) if kind == "AssertionError" else None
    if asserted is not None:
        return Flawed(Flaw.LAYOUT, asserted[1], statement, "", (asserted[2],), backward)
    match = _NAME.search(message) if kind in ("NameError", "UnboundLocalError") else None
    if match is None:
        return None
    variable = match[1] or match[2]
    flaw, number = _fate(function, variable, place.line)
    uses = [node.lineno for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == variable]
    operators = dict.fromkeys(name for line in sorted({*uses, place.line}) for name in _operators(lines, line))
    elsewhere = lines[number - 1].strip() if number else ""
    written = _is_written(tree, variable, place.line)
    return Flawed(flaw, variable, statement, elsewhere, tuple(operators), backward, written)


def _around(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    """The innermost function around a line."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _inputs(function: ast.FunctionDef) -> Iterator[str]:
    """The variables into which the function unpacks its inputs."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == "args":
            yield from (name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))


def _fate(function: ast.FunctionDef, variable: str, line: int) -> tuple[Flaw, int]:
    """Return the flaw that leaves a variable without a value at a line, and the line to blame (0: never assigned)."""
    made, freed = list[int](), list[int]()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == variable:
            made += [node.lineno] if isinstance(node.ctx, ast.Store) else []
            freed += [node.lineno] if isinstance(node.ctx, ast.Del) and node.lineno <= line else []
    if freed:
        return Flaw.FREED, max(freed)
    return (Flaw.EARLY, min(made)) if made else (Flaw.MISSING, 0)


def _is_written(tree: ast.Module, variable: str, line: int) -> bool:
    """Return whether a call on that line writes to the variable: as its ``out``, or through a C++ pointer."""
    types = _pointers(tree)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or call.lineno != line:
            continue
        given = [isinstance(value, ast.Name) and value.id == variable for value in call.args]
        kernel = types.get(call.func.id, ()) if isinstance(call.func, ast.Name) else ()
        as_out = any(word.arg == "out" and variable in ast.unparse(word.value).split() for word in call.keywords)
        if as_out or any(is_it and "const" not in kind for is_it, kind in zip(given, kernel, strict=False)):
            return True
    return False


def _pointers(tree: ast.Module) -> dict[str, list[str]]:
    """The types of the arguments of each C++ kernel, by its name."""
    return {
        target.id: [str(kind.value) for kind in node.value.args[0].elts if isinstance(kind, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.args[0], ast.List)
    }


def _operators(lines: Sequence[str], line: int) -> Iterator[str]:
    """The operators of a line: of the comment above it, or in the name of its kernel."""
    above = line - 2
    while above >= 0 and lines[above].lstrip().startswith("#"):
        if match := _ORIGIN.search(lines[above]):
            yield from (name.strip() for name in match[1].split(",") if name.strip())
            return
        above -= 1
    if match := _KERNEL.search(lines[line - 1]):
        yield match[1]
