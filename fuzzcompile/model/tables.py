"""Tables that packages of fuzzcompile hold as TOML."""

from __future__ import annotations

import importlib.resources
import tomllib
from typing import Any, TypeVar

import msgspec

Row = TypeVar("Row")


def read_table(package: str, name: str) -> dict[str, Any]:
    """The table ``name.toml`` beside the modules of a ``package``."""
    return tomllib.loads((importlib.resources.files(package) / f"{name}.toml").read_text("utf-8"))


def read_rows(package: str, name: str, kind: type[Row]) -> tuple[Row, ...]:
    """The rows of that table in order, each as a ``kind`` whose ``name`` is the row's."""
    return tuple(msgspec.convert({"name": row, **entries}, kind) for row, entries in read_table(package, name).items())
