"""The tables of stateful programs: rows, kinds of values, and definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import msgspec

from fuzzcompile.model.tables import read_table

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
    rows = read_table(__package__, table)
    return tuple(msgspec.convert({"name": name, **row}, StateRow) for name, row in rows.items())


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
    rows = read_table(__package__, "kinds")
    return tuple(msgspec.convert({"name": name, **row}, ValueKind) for name, row in rows.items())


@cache
def load_definitions() -> tuple[dict[str, str], dict[str, str]]:
    """The modules of imported names (empty for a module itself), and the texts of definitions, by name."""
    table = read_table(__package__, "definitions")
    return table["imports"], table["definitions"]
