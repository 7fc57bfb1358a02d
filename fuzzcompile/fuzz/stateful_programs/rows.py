"""The tables of stateful programs: rows, kinds of values, definitions, and calls of Python's own types.

The last are methods, operators, builtins and statements on values of every type: ``python_calls.json``, which
``tools/python_table.py`` makes by calling them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.model.package_files import read_rows, read_table

Lines = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StateRow:
    """A row of any table but ``kinds.toml``, where each entry is explained."""

    name: str
    summary: str
    weight: int
    read: Lines | str
    init: Lines = ()
    body: Lines = ()
    fields: Lines = ()
    module: Lines = ()
    prepare: Lines = ()
    reset: Lines = ()
    globals: Lines = ()
    same: Lines = ("",)
    path: str | None = None
    write: Lines = ()
    change: tuple[Lines, ...] = ()
    around: Lines | str = ()
    after: Lines = ()
    layer: bool = False
    plain: bool = False
    once: bool = False
    binds: bool = False
    forward_only: bool = False
    differentiated: bool = False
    alone: bool = False
    random: bool = False
    assumed: Lines = ()


@cache
def load_rows(table: str) -> tuple[StateRow, ...]:
    """The rows of ``carriers``, ``changes``, ``effects`` or ``constructs``, in order."""
    return read_rows(__package__, table, StateRow)


@dataclass(frozen=True, kw_only=True)
class ValueKind:
    """A row of ``kinds.toml``."""

    name: str
    weight: int
    names: Lines
    values: Lines
    reads: Mapping[str, Lines]
    mutations: Lines = ()
    mutable: bool = False
    callable: bool = False


@cache
def load_kinds() -> tuple[ValueKind, ...]:
    """The kinds of values, in order."""
    return read_rows(__package__, "kinds", ValueKind)


@cache
def load_definitions() -> tuple[dict[str, str], dict[str, str]]:
    """The modules of imported names (empty for a module itself), and the texts of definitions, by name."""
    table = read_table(__package__, "definitions")
    return table["imports"], table["definitions"]


_PLACES = (("local", 45), ("attribute", 25), ("fresh attribute", 18), ("global", 12))
_COUNTS = ((1, 15), (2, 20), (4, 30), (6, 20), (8, 15))
# Percentage of values of a subclass, of the types that have one whose values are made from theirs.
_DERIVED = 30
# The weight of each type among the others.
CALLS_WEIGHT = 10
_WHOLE = ("bool", "range", "slice", "Size", "defaultdict", "deque")  # one made of a deque forgets its length


@dataclass(frozen=True)
class PythonCall:
    """A line on a value, which it names ``{o}``."""

    line: str
    raises: str | None = None  # the class of the error that it raises
    changes: bool = False  # its value
    statement: bool = False  # it is no expression


@dataclass(frozen=True)
class PythonValue:
    """A value of a type as an expression, and the calls of it."""

    type: str
    value: str
    calls: tuple[PythonCall, ...]


@cache
def load_values() -> tuple[PythonValue, ...]:
    """The table, in order."""
    text = resources.files(__package__).joinpath("python_calls.json").read_bytes()
    return msgspec.json.decode(text, type=tuple[PythonValue, ...])


@cache
def list_types() -> dict[str, str]:
    """The types of its values, by the name that steers how often their calls are drawn."""
    return {f"calls_{value.type}": value.type for value in load_values()}


def draw_calls(pen: Pen, kind: str) -> StateRow:
    """A value of the type, a few lines on it, and the text of their results, kept as an attribute of the module.

    Only the last line changes the value, and only one that the forward pass makes.
    """
    place = pen.draw_weighted(_PLACES)
    held = place in ("attribute", "global")
    row = pen.one_of([row for row in load_values() if row.type == kind])
    kept, value = [call for call in row.calls if not call.changes], row.value
    drawn = [pen.one_of(kept) for _ in range(pen.draw_weighted(_COUNTS))]
    if not held and pen.chance(50) and (changing := [call for call in row.calls if call.changes]):
        drawn.append(pen.one_of(changing))
    own, module = f"own_{kind.lower()}", tuple[str, ...]()
    if kind not in _WHOLE and pen.chance(_DERIVED):
        name = f"Own{kind[0].upper()}{kind[1:]}"
        value, module = f"{name}({value})", (f"class {name}({kind}):", "    pass")
    reached = {"local": own, "global": own.upper()}.get(place, f"self.{own}")
    made = f"{reached} = {value}"
    if place == "global":
        module = (*module, *([""] * 2 if module else []), made)
    lines = ["found = []"] if held else [made, "found = []"]
    for call in drawn:
        lines += _write_call(call, reached)
    if drawn[-1].changes:
        lines.append(f"found.append({reached})")
    return StateRow(
        name=f"calls_{kind}",
        summary=f"Calls of a {kind}.",
        weight=CALLS_WEIGHT,
        init=(made,) if place == "attribute" else (),
        module=module,
        read=(*lines, f"self.found_{kind.lower()} = repr(found)", "x = x + len(found)"),
        once=True,
    )


def _write_call(call: PythonCall, reached: str) -> list[str]:
    text = call.line.replace("{o}", reached)
    text = text if call.statement else f"found.append({text})"
    if call.raises is None:
        return [text]
    return ["try:", f"    {text}", f"except {call.raises}:", f'    found.append("{call.raises}")']
