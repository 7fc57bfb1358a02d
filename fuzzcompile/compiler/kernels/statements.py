"""Which operator each line of a kernel's code computes, so that a C++ compiler's message leads to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzzcompile.compiler.kernels.kernel_watch import Watch

# ``kernel.cpp:12:7: error: …``; the line itself is repeated below it, behind its number and a bar.
_PLACE = re.compile(r"^(\S+\.cpp):(\d+):\d+: (?!note)", re.MULTILINE)
_REPEATED = re.compile(r"^ *\d+ \|(.*)$", re.MULTILINE)
_ERROR = re.compile(r"^.*error: .*$", re.MULTILINE)
_DECLARED = re.compile(r"^\s*(?:auto|[\w:<>]+) (\w+) = (.*);\s*$")
# The variables that Inductor makes, whatever stands around their names.
_VARIABLE = re.compile(r"tmp(?:_acc)?\d+")
_SHORTEST = 4


@dataclass(frozen=True)
class Statement:
    """The expression that was written for an operator of a loop (``reduction:sum``), and its variable."""

    variable: str
    expression: str
    operator: str


def wrap_operator(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Know which operator code is written for."""

    def written(proxy: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        with watch.writing(name):
            return original(proxy, name, *args, **kwargs)

    return written


def wrap_load(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Know that a load is written."""

    def load(*args: Any, **kwargs: Any) -> Any:
        with watch.writing("load"):
            return original(*args, **kwargs)

    return load


def wrap_reduction(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Know which reduction is written."""

    def reduction(proxy: Any, dtype: Any, src_dtype: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
        with watch.writing(f"reduction:{kind}"):
            return original(proxy, dtype, src_dtype, kind, *args, **kwargs)

    return reduction


def wrap_generate(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Note what is written for the operator at work."""

    def generate(cse: Any, buffer: Any, expression: Any, *args: Any, **kwargs: Any) -> Any:
        variable = original(cse, buffer, expression, *args, **kwargs)
        try:
            if watch.values and watch.operators:
                text = expression.getvalue() if hasattr(expression, "getvalue") else str(expression)
                watch.statements.append(Statement(str(variable), text, watch.operators[-1]))
        except Exception as error:
            watch.note(error)
        return variable

    return generate


def refused_operators(statements: Sequence[Statement], message: str) -> tuple[str, ...]:
    """The operators of the statements that a C++ compiler refused, the one of its first complaint first."""
    found = (_operator(statements, line) for line in _refused_lines(message))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def complaint(message: str) -> str | None:
    """The compiler's first error, without the file's name."""
    first = _ERROR.search(message)
    return first[0].partition("error: ")[2].strip() if first is not None else None


def _refused_lines(message: str) -> Iterator[str]:
    """The lines of the kernel that a compiler's message names, in its order."""
    for place in _PLACE.finditer(message):
        repeated = _REPEATED.match(message, message.find("\n", place.end()) + 1)
        if repeated is not None:
            yield repeated[1]
            continue
        path, number = Path(place[1]), int(place[2])
        try:
            yield path.read_text(errors="replace").splitlines()[number - 1]
        except (OSError, IndexError):
            continue


def _operator(statements: Sequence[Statement], line: str) -> str | None:
    """The operator that a line was written for: by its expression, else by the variable of a reduction or a value."""
    declared = _DECLARED.match(line)
    text = (declared[2] if declared is not None else line).strip().rstrip(";")
    if len(text) >= _SHORTEST:
        for one in statements:
            if text == one.expression.strip() or (declared is None and text in one.expression):
                return one.operator
    variables = sorted(_VARIABLE.findall(line), key=lambda name: "acc" not in name)
    return next((one.operator for name in variables for one in statements if one.variable == name), None)
