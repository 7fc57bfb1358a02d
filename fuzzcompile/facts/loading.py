"""Reads the tables of facts, and checks them against the types in :mod:`fuzzcompile.facts.tables`."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import re
import tomllib
import types
import typing
from collections.abc import Mapping

from fuzzcompile.errors import FuzzcompileError
from fuzzcompile.facts.tables import Tables
from fuzzcompile.stage_names import STAGES

_BASE = "base.toml"
_VERSION = re.compile(r"(\d+)\.(\d+)(?=\D|$)")
Minor = tuple[int, int]


class FactsError(FuzzcompileError):
    """A table of facts is malformed; the message names the file and the entry."""


def minor_of(version: str) -> Minor:
    """Major and minor number of a torch version such as ``2.13.0+cpu`` or ``2.15.0a0+git1234``.

    Raises:
        FactsError: ``version`` starts with no such numbers.
    """
    match = _VERSION.match(version)
    if match is None:
        raise FactsError(f"{version!r} is no version of torch: it does not start with numbers such as 2.13.")
    return int(match[1]), int(match[2])


@functools.cache
def known_versions() -> tuple[Minor, ...]:
    """The minor versions of torch that have a table, oldest first."""
    files = [entry.name for entry in importlib.resources.files(__package__).iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(minor_of(name) for name in files if name != _BASE))


@functools.cache
def tables_of(minor: Minor) -> Tables:
    """The base with what the version's own file adds to it.

    Raises:
        FactsError: one of the two is malformed.
    """
    name = f"{minor[0]}.{minor[1]}.toml"
    return parsed(merged(_read(_BASE), _read(name)), name)


def parsed(table: Mapping[str, object], file: str) -> Tables:
    """A merged table as :class:`Tables`.

    Raises:
        FactsError: an entry is missing, unknown or of the wrong type, or a stage does not exist.
    """
    tables = _build(Tables, table, file)
    assert isinstance(tables, Tables)
    stages = {*tables.stages, *tables.settings.listed, *(reason.stage for reason in tables.unreachable)}
    unknown = sorted(stages - set(STAGES))
    if unknown:
        raise FactsError(f"fuzzcompile/facts/{file}: there is no stage {unknown[0]!r}.")
    return tables


def merged(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Both tables together: tables are merged, lists extended, other values replaced by those of ``own``."""
    result = dict(base)
    for key, value in own.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            result[key] = merged(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            result[key] = [*before, *value]
        else:
            result[key] = value
    return result


def _read(name: str) -> dict[str, object]:
    try:
        return tomllib.loads((importlib.resources.files(__package__) / name).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FactsError(f"fuzzcompile/facts/{name} cannot be read: {error}.") from error


def _build(kind: object, value: object, place: str) -> object:
    """``value`` as the annotation ``kind`` has it; ``place`` is the file and the entry, for the message."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # an optional entry, which is there
        return _build(inner[0], value, place)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return kind(**_fields(kind, value, place))
    if origin in (tuple, frozenset) and isinstance(value, list):
        items = [_build(inner[0], item, f"{place}, item {number}") for number, item in enumerate(value)]
        return tuple(items) if origin is tuple else frozenset(items)
    if origin is Mapping and isinstance(value, dict):
        return types.MappingProxyType({key: _build(inner[1], item, f"{place}: {key}") for key, item in value.items()})
    if isinstance(kind, type) and kind in (str, bool) and isinstance(value, kind):
        return " ".join(value.split()) if isinstance(value, str) else value
    scalars = {str: "text", bool: "true or false"}
    wanted = "a list" if origin in (tuple, frozenset) else scalars.get(typing.cast(type, kind), "a table")
    raise FactsError(f"fuzzcompile/facts/{place}: {value!r} stands where {wanted} is wanted.")


def _fields(kind: type, value: Mapping[str, object], place: str) -> dict[str, object]:
    types_of = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    unknown = sorted(set(value) - set(types_of))
    missing = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in value]
    if unknown or missing:
        lacks = f"lacks the entry {missing[0]!r}" if missing else f"has an unknown entry {unknown[0]!r}"
        raise FactsError(f"fuzzcompile/facts/{place} {lacks}.")
    return {key: _build(types_of[key], item, f"{place}: {key}") for key, item in value.items()}
