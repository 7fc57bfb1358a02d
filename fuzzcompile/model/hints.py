"""The command lines that messages tell the user to type: quoted for a shell, complete, and no longer than need be."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.settings import KEYS, ActiveSettings, locate_corpus, read_settings

_CASES = ("device", "target", "veto", "plant", "pass", "backend", "timeout", "max_memory")
_QUESTION = ("against", "contract", "call", "module", "math_only", "nproc", "arguments")
# What each command takes of the options that belong to a subject. The others are left out of its command lines.
_TAKES: Mapping[str, tuple[str, ...]] = {
    "triage": (*_CASES, *_QUESTION),
    "minimize": ("corpus", "out", "others", *_CASES, "arguments"),
    "issue": ("corpus", *_CASES, "arguments"),
    "profile": ("device", "veto", "plant", "max_memory", "call", "module", "math_only", "arguments"),
    "corpus": ("corpus",),
    "replay": ("corpus",),
}


def format_command(
    *words: str | Path, published: bool = False, arguments: tuple[str, ...] = (), **options: object
) -> str:
    """A command line of fuzzcompile that works when it is pasted into a shell in the working directory.

    ``words`` are the command, its subcommand and its arguments; paths inside the working directory are made relative.
    ``arguments`` are those of the script that is judged, behind ``--``.
    ``options`` are given by name, ``max_memory`` for ``--max-memory``: True for a flag, a tuple for an option that is
    given several times; None, False and () for one that is not given. A value that is in force without the option, from
    the environment, pyproject.toml or as built in, is left out. A line that is ``published`` is read elsewhere (a
    draft, a page): it says ``fuzzcompile`` wherever that is installed here, and is not shortened by what is in force.
    """
    settings = None
    with contextlib.suppress(UsageError):  # settings that cannot be read leave no option out
        settings = None if published else read_settings()
    parts = ["fuzzcompile"] if published else find_program()
    parts += [_format_argument(word) for word in words]
    for name, value in options.items():
        if not _is_redundant(name, value, settings):
            flag, values = f"--{name.replace('_', '-')}", value if isinstance(value, tuple) else (value,)
            parts += [flag] if value is True else [part for each in values for part in (flag, _format_text(each))]
    return shlex.join([*parts, *(["--", *map(_format_text, arguments)] if arguments else [])])


@dataclass(frozen=True)
class CommandSubject:
    """A case or a finding as the user named it: what to type, and the options that it needs to be the same again."""

    name: str  # the file, or the id of a finding; empty for a command line without one
    options: Mapping[str, object] = field(default_factory=dict)  # as for :func:`format_command`
    published: bool = False  # as for :func:`format_command`

    @classmethod
    def from_name(cls, name: str | CommandSubject) -> CommandSubject:
        """The subject that a plain name stands for."""
        return name if isinstance(name, CommandSubject) else cls(name)

    def format_command(self, *words: str, after: tuple[str | Path, ...] = (), **options: object) -> str:
        """The command line of ``words`` (``"minimize"``, ``"corpus", "show"``) on it, with those options it takes.

        ``after`` are the arguments that follow its name.
        """
        own = {name: value for name, value in self.options.items() if name in _TAKES[words[0]]}
        given: dict[str, Any] = {**own, **options}
        return format_command(*words, *filter(None, [self.name]), *after, published=self.published, **given)

    @property
    def is_finding(self) -> bool:
        """True if the name is the id of a finding."""
        return re.fullmatch(r"F\d+", self.name) is not None

    def is_taken_whole_by(self, word: str) -> bool:
        """Return whether the command takes every option that selects what is judged, such as ``--module``."""
        return not any(self.options.get(name) for name in _QUESTION if name not in _TAKES[word])

    def to_publish(self) -> CommandSubject:
        """The same for command lines that are read elsewhere."""
        return replace(self, published=True)

    def with_options(self, **options: object) -> CommandSubject:
        """The same with further options."""
        return replace(self, options={**self.options, **options})


def format_typed_line() -> str:
    """The command line of this process as it was typed, without passwords: to be kept, and typed again."""
    return shlex.join(["fuzzcompile", *map(strip_password, sys.argv[1:])])


def format_script(path: Path, nproc: int | None = None) -> str:
    """The command line that runs a Python file with the interpreter of this process, or in several processes."""
    words = [_find_python()] if nproc is None else ["torchrun", "--nproc-per-node", str(nproc)]
    return shlex.join([*words, _format_argument(path)])


def find_program() -> list[str]:
    """Return the words that call this installation from the user's shell: ``fuzzcompile`` where that is on the PATH."""
    script = shutil.which("fuzzcompile")
    return ["fuzzcompile"] if script and _is_ours(Path(script)) else [_find_python(), "-m", "fuzzcompile"]


def _find_python() -> str:
    """Return the word that calls this interpreter: its name, where that is the first one of the PATH."""
    names = (name for name in ("python", "python3") if _name_same_file(shutil.which(name), sys.executable))
    return next(names, sys.executable)


def _is_ours(script: Path) -> bool:
    beside = Path(sys.executable).parent.resolve() in (script.parent.resolve(), script.resolve().parent)
    return beside or _name_same_file(str(script), sys.argv[0])


def _name_same_file(left: str | None, right: str) -> bool:
    """Return whether both name one file in one folder: a link in another folder is of another environment."""
    one, other = Path(left or ""), Path(right)
    return left is not None and one.parent == other.parent and one.resolve() == other.resolve()


def _is_redundant(name: str, value: object, settings: ActiveSettings | None) -> bool:
    if value is None or value is False or value == ():
        return True
    key = name.replace("_", "-")
    if settings is None or key not in KEYS:
        return False
    in_force = settings.find_value(key)
    return locate_corpus(value) == locate_corpus(in_force) if key == "corpus" else value == in_force


def _format_argument(word: str | Path) -> str:
    """An argument; one that would be read as an option is written as a path."""
    text = _format_text(word)
    return f"./{text}" if text.startswith("-") else text


def _format_text(value: object) -> str:
    """A value as it is typed: a path inside the working directory is made relative to it, a URL loses its password."""
    if isinstance(value, float):
        return f"{value:g}"
    if "://" in str(value):
        return strip_password(str(value))
    path, folder = Path(str(value)), Path.cwd()
    inside = path.is_absolute() and path.is_relative_to(folder)
    return str(path.relative_to(folder)) if inside else str(value)
