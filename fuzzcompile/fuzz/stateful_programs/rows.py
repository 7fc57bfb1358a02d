"""The rows of the tables of stateful programs."""

from __future__ import annotations

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
    alone: bool = False
    random: bool = False
    assumed: Lines = ()


@cache
def load_rows(table: str) -> tuple[StateRow, ...]:
    """The rows of ``carriers``, ``changes``, ``effects`` or ``constructs``, in order."""
    rows = read_table(__package__, table)
    return tuple(msgspec.convert({"name": name, **row}, StateRow) for name, row in rows.items())
