"""The settings in force without a command line: environment, pyproject.toml, what is built in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fuzzcompile.errors import UsageError
from fuzzcompile.settings.ignored import Ignored
from fuzzcompile.settings.kinds import Value
from fuzzcompile.settings.pyproject import Project, project_above
from fuzzcompile.settings.table import SETTINGS, Setting, setting


class Source(StrEnum):
    """The source of a value."""

    ENVIRONMENT = "environment"
    PYPROJECT = "pyproject"
    DEFAULT = "default"


@dataclass(frozen=True)
class InForce:
    """The values that someone set.

    Attributes:
        environment: values of environment variables, by key.
        project: those of pyproject.toml, and its path.
    """

    environment: Mapping[str, Value]
    project: Project

    def value(self, key: str) -> Value | None:
        """The value in force; None where nothing is set and a command decides.

        Raises:
            KeyError: there is no such setting.
        """
        configured = self.configured(key)
        return setting(key).default if configured is None else configured

    def configured(self, key: str) -> Value | None:
        """The value that the environment or pyproject.toml sets; None if neither does."""
        return self.environment.get(key, self.project.values.get(key))

    def source(self, key: str) -> Source:
        """Return the source of the value."""
        if key in self.environment:
            return Source.ENVIRONMENT
        return Source.PYPROJECT if key in self.project.values else Source.DEFAULT

    def ignored(self, patterns: tuple[str, ...]) -> Ignored | None:
        """Return the matcher of patterns; those of pyproject.toml are relative to that file, others to here."""
        path = self.project.path
        base = path.parent if path is not None and patterns == self.project.values.get("ignore") else Path.cwd()
        return Ignored(patterns, base) if patterns else None


def in_force() -> InForce:
    """Read the environment and the pyproject.toml above the working directory.

    Raises:
        UsageError: a value is wrong, a key is unknown, or the file cannot be read; the sentence names it.
    """
    folder = Path.cwd()
    values = {
        known.key: _of_variable(known, os.environ[known.variable], folder) for known in SETTINGS if _is_set(known)
    }
    return InForce(values, project_above(folder))


def _is_set(known: Setting) -> bool:
    """Return whether the variable holds anything; an empty one is the same as none."""
    return bool(os.environ.get(known.variable, "").strip())


def _of_variable(known: Setting, text: str, folder: Path) -> Value:
    value = known.kind.parse(text.strip(), folder)
    if value is None:
        raise UsageError(f"The environment variable {known.variable} is {text!r}; give {known.kind.wanted}.")
    return value
