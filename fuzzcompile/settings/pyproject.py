"""``[tool.fuzzcompile]`` of the nearest pyproject.toml that has it."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from fuzzcompile.errors import UsageError
from fuzzcompile.settings.kinds import Value
from fuzzcompile.settings.table import KEYS, setting

FILE, TABLE = "pyproject.toml", "tool.fuzzcompile"


@dataclass(frozen=True)
class Project:
    """The values of one pyproject.toml; ``path`` is None, and ``values`` empty, where there is none."""

    path: Path | None = None
    values: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))


def project_above(folder: Path) -> Project:
    """Read the first pyproject.toml with ``[tool.fuzzcompile]`` in ``folder`` or above it.

    Files without that table belong to parts of a project, and are passed over.

    Raises:
        UsageError: a file on the way cannot be read or is not TOML, or the table has an unknown key or a wrong value.
    """
    for place in (folder, *folder.parents):
        path = place / FILE
        if os.path.isfile(path):  # noqa: PTH113 (False, not an error, where a folder may not be entered)
            seen = path.stat()
            values = _read(path, seen.st_mtime_ns, seen.st_size)
            if values is not None:
                return Project(path, values)
    return Project()


@lru_cache(maxsize=8)
def _read(path: Path, modified: int, size: int) -> Mapping[str, Value] | None:
    """The values in a file, or None if it has no table of ours; ``modified`` and ``size`` tell when to read anew."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; make it readable, or work elsewhere.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}; mend it, since [{TABLE}] is read from it.") from error
    tool = content.get("tool")
    if not isinstance(tool, dict) or "fuzzcompile" not in tool:
        return None
    table = tool["fuzzcompile"]
    if not isinstance(table, dict):
        raise UsageError(f'{path}: [{TABLE}] must be a table of settings, such as device = "cpu".')
    return MappingProxyType(dict(_value(path, key, given) for key, given in table.items()))


def _value(path: Path, key: str, given: object) -> tuple[str, Value]:
    """The setting that ``key`` names, and its value."""
    name = key.replace("_", "-")
    if name not in KEYS:
        near = difflib.get_close_matches(name, KEYS, n=1)
        meant = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(KEYS)}."
        raise UsageError(f"{path}: [{TABLE}] has an unknown key {key!r}; {meant}")
    kind = setting(name).kind
    value = kind.read(given, path.parent)
    if value is None:
        raise UsageError(f"{path}: {key} of [{TABLE}] is {given!r}; give {kind.wanted}.")
    return name, value
