"""Which definitions a diff of a checkout touches: lines differ from the installed torch's, names seldom do."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.focusing.definitions import Source

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SECONDS = 120.0
Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Touched:
    """What of a file was touched.

    Attributes:
        file: relative to the checkout, as the installed torch has it: ``torch/_inductor/ir.py``.
        names: the definitions, before and after.
        outside: how many of the changed lines stand in none.
    """

    file: str
    names: tuple[str, ...]
    outside: int = 0


def changed_in(checkout: Path, revision: str) -> list[Touched]:
    """The files of torch that differ from ``revision`` in a checkout, with the definitions that differ.

    Raises:
        UsageError: git does not know the revision, or the folder is no checkout.
        EnvironmentUnfit: there is no git, or it hangs.
    """
    diff = _git(checkout, "diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-renames", revision, "--", "torch")
    return [touched for file, old, new in _files(diff) if (touched := _touched(checkout, revision, file, old, new))]


def _touched(checkout: Path, revision: str, file: str, old: Ranges, new: Ranges) -> Touched | None:
    after = _source(file, _read(checkout / file))
    before = _source(file, _shown(checkout, revision, file))
    names, outside = dict[str, None](), 0
    for source, ranges in ((after, new), (before, old)):
        for first, last in ranges:
            met = source.at(first, last)
            names |= dict.fromkeys(part.name for part in met if _differs(part.name, before, after))
            outside += 0 if met else last - first + 1
    return Touched(file, tuple(names), outside) if names or outside else None


def _differs(name: str, before: Source, after: Source) -> bool:
    """Whether more than comments, blank lines or the place of a definition changed."""
    return [part.code for part in before.named(name)] != [part.code for part in after.named(name)]


def _source(file: str, text: str) -> Source:
    try:
        return Source.parse(file, text)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{file} of the checkout cannot be read as Python ({error}): mend it first.") from error


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _shown(checkout: Path, revision: str, file: str) -> str:
    """A file as it was; empty where it is new, or the revision is a range that git can diff and not show."""
    try:
        return _git(checkout, "show", f"{revision.split('..')[0]}:{file}")
    except UsageError:
        return ""


def _files(diff: str) -> Iterator[tuple[str, Ranges, Ranges]]:
    """Each Python file of a diff with the lines that went and the lines that came."""
    old, new = defaultdict[str, Ranges](list), defaultdict[str, Ranges](list)
    names = dict[str, None]()
    file = ""
    for line in diff.splitlines():
        if line.startswith(("--- a/", "+++ b/")):
            file = line[6:]
        elif (hunk := _HUNK.match(line)) is not None and file.endswith(".py"):
            names[file] = None
            first, count, to_first, to_count = (int(part) if part is not None else 1 for part in hunk.groups())
            old[file] += [(first, first + count - 1)] if count else []
            new[file] += [(to_first, to_first + to_count - 1)] if to_count else []
    return ((name, old[name], new[name]) for name in names)


def _git(folder: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnfit(f"--changed needs git, which does not answer: {error}.") from error
    if ran.returncode:
        said = " ".join(ran.stderr.split())[:200] or f"status {ran.returncode}"
        raise UsageError(f"git knows no such diff in {folder}: {said}.")
    return ran.stdout
