"""The settings: what can be set in pyproject.toml, in the environment and on the command line, and what is in force."""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.severity import FAIL_ON
from fuzzcompile.model.targets import TARGETS

# However its driver is spelt.
_POSTGRES = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://")

FILE_NAME = "fuzzcompile.db"


def locate_corpus(named: object) -> str:
    """The absolute path of the database (in a folder, of the one there), or the URL without its password."""
    text = str(named).removeprefix("sqlite:///")
    if "://" in text:
        return _POSTGRES.sub("postgresql://", strip_password(text))
    path = Path(text).expanduser().absolute()
    return str(path / FILE_NAME if path.is_dir() else path)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which is in no range and passes every comparison, and without infinities."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or the error of click that says what is wrong with it."""
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number.", param, ctx)


SettingValue = str | int | float | Path | tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One setting."""

    key: str  # its name in ``[tool.fuzzcompile]``, and that of the option (``--max-memory``)
    says: str  # what it sets, for ``fuzzcompile doctor --settings``
    default: SettingValue | None = None  # what is built in; None where a command decides
    type: click.ParamType[Any] = click.STRING  # what values it takes, on the command line as elsewhere
    requirement: str = "text"  # the same in words, to complete "give ..."
    multiple: bool = False  # a list of such values: an array in TOML, words between spaces in an environment variable

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"FUZZCOMPILE_{self.key.replace('-', '_').upper()}"

    def read(self, given: object, base: Path) -> SettingValue | None:
        """The value of what TOML or an environment variable gives, paths from ``base``; None for another type."""
        items = given if self.multiple else [given]
        if not isinstance(items, list):
            return None
        if not all(isinstance(item, str | int | float) and item != "" and not isinstance(item, bool) for item in items):
            return None
        try:
            values = [self.type.convert(str(item), None, None) for item in items]
        except click.BadParameter:
            return None
        if isinstance(self.type, click.Path) and "://" not in str(items[0]):
            return base / Path(values[0]).expanduser()
        value: SettingValue = tuple(values) if self.multiple else values[0]
        return value


def _list_words(words: list[str]) -> dict[str, Any]:
    return {"type": click.Choice(words), "requirement": f"{', '.join(words[:-1])} or {words[-1]}"}


_PATH: Mapping[str, Any] = {"type": click.Path(path_type=Path), "requirement": "a path, as text"}
SETTINGS = (
    Setting(
        "corpus", "the corpus, a path or a URL", Path("corpus/fuzzcompile.db"), click.Path(), "a path or a URL, as text"
    ),
    Setting("drafts", "the folder for a campaign's issue drafts", Path("reports/drafts"), **_PATH),
    Setting("device", "where cases run", "auto", requirement="auto, cpu, cuda or cuda:N, as text"),
    Setting("target", "the device that the compiler is told", **_list_words(list(TARGETS))),
    Setting("workers", "worker processes", None, click.IntRange(1, 256), "a whole number 1 to 256"),
    Setting("timeout", "seconds for one case", 180.0, FiniteRange(1), "a number of at least 1"),
    Setting("max-memory", "GiB of host memory for one worker", 8.0, FiniteRange(0.5), "a number of at least 0.5"),
    Setting(
        "patience",
        "seconds to wait for a corpus whose database server is gone",
        600.0,
        FiniteRange(0),
        "a number of at least 0",
    ),
    Setting("baseline", "known bugs, which do not make the exit status 1", **_PATH),
    Setting(
        "fail-on", "the least severity, or the verdict, that makes the exit status 1", **_list_words(list(FAIL_ON))
    ),
    Setting(
        "ignore",
        "bugs that count as known, and files of a folder that are not judged",
        (),
        requirement='a list of text, such as ["drafts/*"]',
        multiple=True,
    ),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}
KEYS = tuple(_BY_KEY)


def find_setting(key: str) -> Setting:
    """The setting of that name, or a KeyError."""
    return _BY_KEY[key]


# What is in force without a command line.

FILE, TABLE = "pyproject.toml", "tool.fuzzcompile"


class SettingSource(StrEnum):
    """The source of a value."""

    ENVIRONMENT = "environment"
    PYPROJECT = "pyproject"
    DEFAULT = "default"


@dataclass(frozen=True)
class ActiveSettings:
    """The values that someone set, by key: in the environment, and in the file ``path``, pyproject.toml."""

    environment: Mapping[str, SettingValue]
    project: Mapping[str, SettingValue]
    path: Path | None

    def find_value(self, key: str) -> SettingValue | None:
        """The value in force; None where nothing is set and a command decides."""
        return {key: find_setting(key).default, **self.project, **self.environment}[key]

    def find_source(self, key: str) -> SettingSource:
        """Return the source of the value."""
        if key in self.environment:
            return SettingSource.ENVIRONMENT
        return SettingSource.PYPROJECT if key in self.project else SettingSource.DEFAULT


def read_settings() -> ActiveSettings:
    """Read the environment, and the first pyproject.toml with ``[tool.fuzzcompile]`` in the working folder or above it.

    Files without that table belong to parts of a project, and are passed over; an empty variable is the same as none.
    UsageError names a value that is wrong, a key that is unknown, or a file that cannot be read or is not TOML.
    """
    folder, environment = Path.cwd(), {}
    for known in SETTINGS:
        if text := os.environ.get(known.variable, "").strip():
            value = known.read(text.split() if known.multiple else text, folder)
            if value is None:
                raise UsageError(f"The environment variable {known.variable} is {text!r}; give {known.requirement}.")
            environment[known.key] = value
    for place in (folder, *folder.parents):
        path = place / FILE
        if os.path.isfile(path):  # noqa: PTH113 (False, not an error, where a folder may not be entered)
            seen = path.stat()
            values = _read_table(path, seen.st_mtime_ns, seen.st_size)
            if values is not None:
                return ActiveSettings(environment, values, path)
    return ActiveSettings(environment, {}, None)


@lru_cache(maxsize=8)
def _read_table(path: Path, modified: int, size: int) -> Mapping[str, SettingValue] | None:
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
    values = {}
    for key, given in table.items():
        name = key.replace("_", "-")
        if name not in KEYS:
            near = difflib.get_close_matches(name, KEYS, n=1)
            meant = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(KEYS)}."
            raise UsageError(f"{path}: [{TABLE}] has an unknown key {key!r}; {meant}")
        value = find_setting(name).read(given, path.parent)
        if value is None:
            raise UsageError(f"{path}: {key} of [{TABLE}] is {given!r}; give {find_setting(name).requirement}.")
        values[name] = value
    return values
