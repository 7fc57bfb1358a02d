"""What a user names after --focus and --changed: names, and lines of the installed compiler. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.custom import Loaded
from fuzzcompile.errors import UsageError
from fuzzcompile.focusing.definitions import Source
from fuzzcompile.focusing.diffs import Touched, changed_in
from fuzzcompile.focusing.plan import FocusQuestion
from fuzzcompile.span import END, Span

_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?$")
_MOST_NAMED = 5


@dataclass(frozen=True)
class Asked:
    """What to ask a worker about, and sentences on what could not be followed."""

    question: FocusQuestion
    notes: tuple[str, ...] = ()


def asked_for(focus: Sequence[str], changed: Sequence[str], checkout: Path | None, root: Path) -> Asked:
    """Read what a user aims at.

    Args:
        focus: names, files, ``FILE:LINE`` and ``FILE:FROM-TO``.
        changed: revisions; what differs from each in the checkout is aimed at.
        checkout: a checkout of PyTorch; by default the working directory.
        root: the folder that holds the installed torch.

    Raises:
        UsageError: a file, line, checkout or revision that there is not, or nothing of the compiler was changed.
    """
    if checkout is not None and not changed:
        raise UsageError("--checkout says where --changed looks: give --changed REV too.")
    names = [what for what in focus if _FILE.match(what) is None]
    lines = [_lines(what, root) for what in focus if _FILE.match(what) is not None]
    folder = (checkout or Path.cwd()).resolve()
    if changed and not (folder / "torch" / "_inductor").is_dir():
        raise UsageError(
            f"{folder} is no checkout of PyTorch (it has no torch/_inductor): name one with --checkout DIR."
        )
    if any(revision.startswith("-") for revision in changed):
        raise UsageError("--changed takes a revision of git, such as main or HEAD~1, not an option.")
    touched = [part for revision in changed for part in changed_in(folder, revision)]
    if changed and not touched:
        raise UsageError(
            f"Nothing under {folder}/torch differs from {' or '.join(changed)}: there is nothing to aim at."
        )
    mapped = [_installed(part, root) for part in touched]
    spans = [*(span for spans, _ in (*lines, *mapped) for span in spans)]
    notes = tuple(note for _, notes in (*lines, *mapped) for note in notes)
    if not names and not spans:
        raise UsageError(f"What differs there is not in the installed torch: {' '.join(notes)}")
    return Asked(FocusQuestion(tuple(names), tuple(dict.fromkeys(spans))), notes)


def aimed_at_own(custom: Sequence[Loaded]) -> Asked | None:
    """What a campaign with passes of the user's own aims at; None without one."""
    names = tuple(loaded.name for loaded in custom if loaded.kind == "pass")
    return Asked(FocusQuestion(names)) if names else None


def _lines(what: str, root: Path) -> tuple[list[Span], list[str]]:
    match = _FILE.match(what)
    assert match is not None, "only what names a file is read as one"
    first = int(match["first"] or 1)
    last = int(match["last"] or match["first"] or END)
    given = Path(match["path"])
    file = _relative(given, root, what)
    foreign = given.resolve() if given.is_file() and given.resolve() != (root / file).resolve() else None
    length = len((foreign or root / file).read_text(encoding="utf-8", errors="replace").splitlines())
    if first < 1 or first > min(last, length):
        raise UsageError(f"--focus {what}: {given.name} has lines 1 to {length}; write FILE:FROM-TO with FROM <= TO.")
    if foreign is None:
        return [Span(file, first, last)], []
    return _installed(_touched(file, foreign, first, last), root)


def _touched(file: str, path: Path, first: int, last: int) -> Touched:
    """Lines of another copy of a file of torch's, by the definitions in them."""
    try:
        source = Source.parse(file, path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as Python: {error}.") from error
    return Touched(file, tuple(part.name for part in source.at(first, last)))


def _relative(path: Path, root: Path, what: str) -> str:
    """The file of the installed torch that ``path`` means, however much of it was written."""
    parts = path.parts
    for start in (index for index in range(len(parts)) if parts[index] == "torch"):
        inside = Path(*parts[start:])
        if (root / inside).is_file():
            return inside.as_posix()
    ending = f"/{path.as_posix().lstrip('./')}"
    files = [file for file in _files(root) if f"/{file}".endswith(ending)]
    if len(files) == 1:
        return files[0]
    if files:
        listed = ", ".join(files[:_MOST_NAMED])
        raise UsageError(f"--focus {what} may mean {listed}: write more of the path.")
    raise UsageError(
        f"--focus {what}: the installed torch has no such file; name one from its folder, torch/_inductor/..."
    )


def _files(root: Path) -> Iterator[str]:
    return (path.relative_to(root).as_posix() for path in sorted((root / "torch").rglob("*.py")))


def _installed(touched: Touched, root: Path) -> tuple[list[Span], list[str]]:
    """The lines of the installed torch that define what was touched elsewhere, and what is not there."""
    path = root / touched.file
    if not path.is_file():
        return [], [f"{touched.file} is not in the installed torch."]
    source = Source.parse(touched.file, path.read_text(encoding="utf-8"))
    spans = [Span(touched.file, part.first, part.last) for name in touched.names for part in source.named(name)]
    absent = [name for name in touched.names if not source.named(name)]
    notes = (
        [f"{touched.file}: the installed torch does not define {', '.join(absent[:_MOST_NAMED])}."] if absent else []
    )
    if touched.outside:
        notes.append(f"{touched.file}: {touched.outside} changed lines lie outside of every definition.")
    return spans, notes
