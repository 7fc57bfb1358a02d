"""The kinds of values that a setting takes, read from TOML and from the text of an environment variable."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.targets import TARGETS

# The place of a corpus, from the path or URL that the user gives.

# However its driver is spelt.
_POSTGRES = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://")

FILE_NAME = "fuzzcompile.db"


def locate_corpus(named: object) -> str:
    """The absolute path of the database, or the URL without its password; a folder stands for the database in it.

    Two names of one place give the same.
    """
    text = str(named).removeprefix("sqlite:///")
    if "://" in text:
        return _POSTGRES.sub("postgresql://", strip_password(text))
    path = Path(text).expanduser().absolute()
    return str(path / FILE_NAME if path.is_dir() else path)


SettingValue = str | int | float | Path | tuple[str, ...]


class SettingKind(Protocol):
    """Reads values of one kind. ``wanted`` completes the sentence "give ..."."""

    @property
    def requirement(self) -> str:
        """The requirement on a value, in words."""
        ...

    def read(self, given: object, base: Path) -> SettingValue | None:
        """The value for what TOML gives, or None if it is not of this kind; ``base`` is where relative paths begin."""
        ...

    def parse(self, text: str, base: Path) -> SettingValue | None:
        """The value for the text of an environment variable, or None if it is not of this kind."""
        ...


@dataclass(frozen=True)
class TextKind:
    """Any text."""

    requirement: str = "text"

    def read(self, given: object, base: Path) -> SettingValue | None:
        """The text."""
        return given if isinstance(given, str) and given else None

    def parse(self, text: str, base: Path) -> SettingValue | None:
        """The text."""
        return text


@dataclass(frozen=True)
class FilePathKind:
    """A path; ``or_url`` leaves URLs as they are."""

    or_url: bool = False

    @property
    def requirement(self) -> str:
        """The requirement on a value, in words."""
        return "a path or a URL, as text" if self.or_url else "a path, as text"

    def read(self, given: object, base: Path) -> SettingValue | None:
        """The path, from ``base`` if it is relative."""
        return self.parse(given, base) if isinstance(given, str) and given else None

    def parse(self, text: str, base: Path) -> SettingValue | None:
        """The path, from ``base`` if it is relative."""
        return text if self.or_url and "://" in text else base / Path(text).expanduser()


@dataclass(frozen=True)
class NumberKind:
    """A number from ``least`` to ``most``; ``whole`` for an integer."""

    least: float
    most: float | None = None
    whole: bool = False

    @property
    def requirement(self) -> str:
        """The requirement on a value, in words."""
        what = "a whole number" if self.whole else "a number"
        return f"{what} of at least {self.least:g}" if self.most is None else f"{what} {self.least:g} to {self.most:g}"

    def read(self, given: object, base: Path) -> SettingValue | None:
        """The number, if it lies within the bounds."""
        if isinstance(given, bool) or not isinstance(given, int if self.whole else int | float):
            return None
        return given if self.least <= given and (self.most is None or given <= self.most) else None

    def parse(self, text: str, base: Path) -> SettingValue | None:
        """The number, if the text is one within the bounds."""
        try:
            return self.read(int(text) if self.whole else float(text), base)
        except ValueError:
            return None


@dataclass(frozen=True)
class ChoiceKind:
    """One of a few words."""

    words: Sequence[str]

    @property
    def requirement(self) -> str:
        """The requirement on a value, in words."""
        return " or ".join((", ".join(self.words[:-1]), self.words[-1]))

    def read(self, given: object, base: Path) -> SettingValue | None:
        """The word."""
        return given if isinstance(given, str) and given in self.words else None

    def parse(self, text: str, base: Path) -> SettingValue | None:
        """The word."""
        return self.read(text, base)


@dataclass(frozen=True)
class PatternsKind:
    """A list of texts: an array in TOML, words between spaces in an environment variable."""

    requirement: str = 'a list of text, such as ["drafts/*"]'

    def read(self, given: object, base: Path) -> SettingValue | None:
        """The texts."""
        if not isinstance(given, list) or not all(isinstance(item, str) and item for item in given):
            return None
        return tuple(given)

    def parse(self, text: str, base: Path) -> SettingValue | None:
        """The words."""
        return tuple(text.split())


# The settings: their names in pyproject.toml, their environment variables, and what is built in.


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: its name in ``[tool.fuzzcompile]``, and that of the option (``--max-memory``).
        kind: what values it takes.
        says: what it sets, for ``fuzzcompile config``.
        default: what is built in; None where a command decides.
    """

    key: str
    kind: SettingKind
    says: str
    default: SettingValue | None = None

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"FUZZCOMPILE_{self.key.replace('-', '_').upper()}"


SETTINGS = (
    Setting("corpus", FilePathKind(or_url=True), "the corpus, a path or a URL", Path("corpus/fuzzcompile.db")),
    Setting("drafts", FilePathKind(), "the folder for a campaign's issue drafts", Path("reports/drafts")),
    Setting("device", TextKind("auto, cpu, cuda or cuda:N, as text"), "where cases run", "auto"),
    Setting("target", ChoiceKind(tuple(TARGETS)), "the device that the compiler is told"),
    Setting("workers", NumberKind(1, 256, whole=True), "worker processes"),
    Setting("timeout", NumberKind(1), "seconds for one case", 180.0),
    Setting("max-memory", NumberKind(0.5), "GiB of host memory for one worker", 8.0),
    Setting("patience", NumberKind(0), "seconds to wait for a corpus whose database server is gone", 600.0),
    Setting("baseline", FilePathKind(), "known bugs, which do not make the exit status 1"),
    Setting("fail-on", ChoiceKind(tuple(map(str, Severity))), "the least severity that makes the exit status 1"),
    Setting("ignore", PatternsKind(), "bugs that count as known, and files of a folder that are not judged", ()),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}
KEYS = tuple(_BY_KEY)


def find_setting(key: str) -> Setting:
    """The setting of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_KEY[key]


# The setting ``ignore``: bugs that a project knows of, and files that are no cases.


@dataclass(frozen=True)
class IgnorePatterns:
    """Patterns of ``ignore``.

    A pattern with a colon speaks of signatures: one matches that is equal to it, begins with it, or fits it as a glob
    (``joint_graph:*:sfdp*``). Any other pattern is a glob that is tried on three things: the file of a case, relative
    to ``base``, and the folders above it (``experiments``, ``*_slow.py``); the rewrite or the pass of a culprit
    (``_sfdp_pattern_*``); and the source file of a culprit (``torch/_inductor/fx_passes/*``).

    Attributes:
        patterns: what the user gave.
        base: the folder that files are relative to.
    """

    patterns: tuple[str, ...]
    base: Path

    def ignores_file(self, path: Path) -> bool:
        """Return whether triage of a folder or a glob passes over this file."""
        names = _list_names(path.absolute(), self.base.absolute())
        return any(fnmatchcase(name, pattern.rstrip("/")) for pattern in self._globs() for name in names)

    def ignores_bug(self, signature: str | None, culprit: Mapping[str, object] | None) -> bool:
        """Return whether a bug of this signature and culprit counts as known."""
        named = [str((culprit or {}).get(field) or "") for field in ("rewrite", "pass", "source")]
        if any(fnmatchcase(name, pattern) for pattern in self._globs() for name in named if name):
            return True
        return signature is not None and any(
            signature == pattern or signature.startswith(pattern.rstrip(":") + ":") or fnmatchcase(signature, pattern)
            for pattern in self.patterns
            if ":" in pattern
        )

    def _globs(self) -> list[str]:
        return [pattern for pattern in self.patterns if ":" not in pattern]


def _list_names(path: Path, base: Path) -> list[str]:
    """A file's own name, and its path and those of the folders above it, from ``base``."""
    if not path.is_relative_to(base):
        return [path.name]
    inside = path.relative_to(base)
    return [path.name, *(str(place) for place in (inside, *inside.parents) if place != Path())]


# ``[tool.fuzzcompile]`` of the nearest pyproject.toml that has it.

FILE, TABLE = "pyproject.toml", "tool.fuzzcompile"


@dataclass(frozen=True)
class ProjectSettings:
    """The values of one pyproject.toml; ``path`` is None, and ``values`` empty, where there is none."""

    path: Path | None = None
    values: Mapping[str, SettingValue] = field(default_factory=lambda: MappingProxyType({}))


def find_project(folder: Path) -> ProjectSettings:
    """Read the first pyproject.toml with ``[tool.fuzzcompile]`` in ``folder`` or above it.

    Files without that table belong to parts of a project, and are passed over.

    Raises:
        UsageError: a file on the way cannot be read or is not TOML, or the table has an unknown key or a wrong value.
    """
    for place in (folder, *folder.parents):
        path = place / FILE
        if os.path.isfile(path):  # noqa: PTH113 (False, not an error, where a folder may not be entered)
            seen = path.stat()
            values = _read_table(path, seen.st_mtime_ns, seen.st_size)
            if values is not None:
                return ProjectSettings(path, values)
    return ProjectSettings()


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
    return MappingProxyType(dict(_read_value(path, key, given) for key, given in table.items()))


def _read_value(path: Path, key: str, given: object) -> tuple[str, SettingValue]:
    """The setting that ``key`` names, and its value."""
    name = key.replace("_", "-")
    if name not in KEYS:
        near = difflib.get_close_matches(name, KEYS, n=1)
        meant = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(KEYS)}."
        raise UsageError(f"{path}: [{TABLE}] has an unknown key {key!r}; {meant}")
    kind = find_setting(name).kind
    value = kind.read(given, path.parent)
    if value is None:
        raise UsageError(f"{path}: {key} of [{TABLE}] is {given!r}; give {kind.requirement}.")
    return name, value


# The settings in force without a command line: environment, pyproject.toml, what is built in.


class SettingSource(StrEnum):
    """The source of a value."""

    ENVIRONMENT = "environment"
    PYPROJECT = "pyproject"
    DEFAULT = "default"


@dataclass(frozen=True)
class ActiveSettings:
    """The values that someone set.

    Attributes:
        environment: values of environment variables, by key.
        project: those of pyproject.toml, and its path.
    """

    environment: Mapping[str, SettingValue]
    project: ProjectSettings

    def find_value(self, key: str) -> SettingValue | None:
        """The value in force; None where nothing is set and a command decides.

        Raises:
            KeyError: there is no such setting.
        """
        configured = self.find_configured(key)
        return find_setting(key).default if configured is None else configured

    def find_configured(self, key: str) -> SettingValue | None:
        """The value that the environment or pyproject.toml sets; None if neither does."""
        return self.environment.get(key, self.project.values.get(key))

    def find_source(self, key: str) -> SettingSource:
        """Return the source of the value."""
        if key in self.environment:
            return SettingSource.ENVIRONMENT
        return SettingSource.PYPROJECT if key in self.project.values else SettingSource.DEFAULT

    def make_ignore_patterns(self, patterns: tuple[str, ...]) -> IgnorePatterns | None:
        """Return the matcher of patterns; those of pyproject.toml are relative to that file, others to here."""
        path = self.project.path
        base = path.parent if path is not None and patterns == self.project.values.get("ignore") else Path.cwd()
        return IgnorePatterns(patterns, base) if patterns else None


def read_settings() -> ActiveSettings:
    """Read the environment and the pyproject.toml above the working directory.

    Raises:
        UsageError: a value is wrong, a key is unknown, or the file cannot be read; the sentence names it.
    """
    folder = Path.cwd()
    values = {
        known.key: _parse_variable(known, os.environ[known.variable], folder) for known in SETTINGS if _is_set(known)
    }
    return ActiveSettings(values, find_project(folder))


def _is_set(known: Setting) -> bool:
    """Return whether the variable holds anything; an empty one is the same as none."""
    return bool(os.environ.get(known.variable, "").strip())


def _parse_variable(known: Setting, text: str, folder: Path) -> SettingValue:
    value = known.kind.parse(text.strip(), folder)
    if value is None:
        raise UsageError(f"The environment variable {known.variable} is {text!r}; give {known.kind.requirement}.")
    return value
