"""The kinds of values that a setting takes, read from TOML and from the text of an environment variable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Value = str | int | float | Path | tuple[str, ...]


class Kind(Protocol):
    """Reads values of one kind. ``wanted`` completes the sentence "give ..."."""

    @property
    def wanted(self) -> str:
        """The requirement on a value, in words."""
        ...

    def read(self, given: object, base: Path) -> Value | None:
        """The value for what TOML gives, or None if it is not of this kind; ``base`` is where relative paths begin."""
        ...

    def parse(self, text: str, base: Path) -> Value | None:
        """The value for the text of an environment variable, or None if it is not of this kind."""
        ...


@dataclass(frozen=True)
class Text:
    """Any text."""

    wanted: str = "text"

    def read(self, given: object, base: Path) -> Value | None:
        """The text."""
        return given if isinstance(given, str) and given else None

    def parse(self, text: str, base: Path) -> Value | None:
        """The text."""
        return text


@dataclass(frozen=True)
class FilePath:
    """A path; ``or_url`` leaves URLs as they are."""

    or_url: bool = False

    @property
    def wanted(self) -> str:
        """The requirement on a value, in words."""
        return "a path or a URL, as text" if self.or_url else "a path, as text"

    def read(self, given: object, base: Path) -> Value | None:
        """The path, from ``base`` if it is relative."""
        return self.parse(given, base) if isinstance(given, str) and given else None

    def parse(self, text: str, base: Path) -> Value | None:
        """The path, from ``base`` if it is relative."""
        return text if self.or_url and "://" in text else base / Path(text).expanduser()


@dataclass(frozen=True)
class Number:
    """A number from ``least`` to ``most``; ``whole`` for an integer."""

    least: float
    most: float | None = None
    whole: bool = False

    @property
    def wanted(self) -> str:
        """The requirement on a value, in words."""
        what = "a whole number" if self.whole else "a number"
        return f"{what} of at least {self.least:g}" if self.most is None else f"{what} {self.least:g} to {self.most:g}"

    def read(self, given: object, base: Path) -> Value | None:
        """The number, if it lies within the bounds."""
        if isinstance(given, bool) or not isinstance(given, int if self.whole else int | float):
            return None
        return given if self.least <= given and (self.most is None or given <= self.most) else None

    def parse(self, text: str, base: Path) -> Value | None:
        """The number, if the text is one within the bounds."""
        try:
            return self.read(int(text) if self.whole else float(text), base)
        except ValueError:
            return None


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: Sequence[str]

    @property
    def wanted(self) -> str:
        """The requirement on a value, in words."""
        return " or ".join((", ".join(self.words[:-1]), self.words[-1]))

    def read(self, given: object, base: Path) -> Value | None:
        """The word."""
        return given if isinstance(given, str) and given in self.words else None

    def parse(self, text: str, base: Path) -> Value | None:
        """The word."""
        return self.read(text, base)


@dataclass(frozen=True)
class Patterns:
    """A list of texts: an array in TOML, words between spaces in an environment variable."""

    wanted: str = 'a list of text, such as ["drafts/*"]'

    def read(self, given: object, base: Path) -> Value | None:
        """The texts."""
        if not isinstance(given, list) or not all(isinstance(item, str) and item for item in given):
            return None
        return tuple(given)

    def parse(self, text: str, base: Path) -> Value | None:
        """The words."""
        return tuple(text.split())
