"""Names after --focus and --changed, and lines of the installed compiler. Needs no torch."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzzcompile.fuzz.focus.code_graph import DefinitionSource
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.focus_plan import END, FocusAim, FocusObservation, FocusPlan, FocusQuestion, Span
from fuzzcompile.run.subprocesses import capture_output

# Which definitions a diff of a checkout touches: lines differ from the installed torch's, names seldom do.

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SECONDS = 120.0
Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class TouchedFile:
    """Touched parts of a file."""

    file: str  # relative to the checkout, as the installed torch has it: ``torch/_inductor/ir.py``
    names: tuple[str, ...]  # the definitions, before and after
    outside: int = 0  # how many of the changed lines stand in none


def find_changes(checkout: Path, revision: str) -> list[TouchedFile]:
    """The files of torch that differ from ``revision`` in a checkout, with the definitions that differ.

    Raises:
        UsageError: git does not know the revision, or the folder is no checkout.
        EnvironmentUnfit: there is no git, or it hangs.
    """
    options = ("--unified=0", "--no-color", "--no-ext-diff", "--no-renames")
    diff = _run_git(checkout, "diff", *options, revision, "--", "torch")
    touched = [_find_touched_names(checkout, revision, *changed) for changed in _iter_diff_files(diff)]
    return [each for each in touched if each.names or each.outside]


def _find_touched_names(checkout: Path, revision: str, file: str, old: Ranges, new: Ranges) -> TouchedFile:
    path, was = checkout / file, ""
    # It is new, or the revision is a range that git can diff and not show.
    with contextlib.suppress(UsageError):
        was = _run_git(checkout, "show", f"{revision.split('..')[0]}:{file}")
    after = _parse_source(file, path.read_text(encoding="utf-8") if path.is_file() else "")
    before = _parse_source(file, was)
    names, outside = dict[str, None](), 0
    for source, ranges in ((after, new), (before, old)):
        for first, last in ranges:
            met = source.find_at(first, last)
            outside += 0 if met else last - first + 1
            for name in (part.name for part in met):
                # More than comments, blank lines or the place of a definition changed.
                if [part.code for part in before.find_named(name)] != [part.code for part in after.find_named(name)]:
                    names[name] = None
    return TouchedFile(file, tuple(names), outside)


def _parse_source(file: str, text: str) -> DefinitionSource:
    try:
        return DefinitionSource.parse(file, text)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{file} of the checkout cannot be read as Python ({error}): mend it first.") from error


def _iter_diff_files(diff: str) -> Iterator[tuple[str, Ranges, Ranges]]:
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


def _run_git(folder: Path, *arguments: str) -> str:
    try:
        ran = capture_output(["git", "-C", folder, *arguments], seconds=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnfit(f"--changed needs git, which does not answer: {error}.") from error
    if ran.returncode:
        said = " ".join(ran.stderr.split())[:200] or f"status {ran.returncode}"
        raise UsageError(f"git knows no such diff in {folder}: {said}.")
    return ran.stdout


_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?$")
_MOST_NAMED = 5


@dataclass(frozen=True)
class FocusRequest:
    """Questions for a worker, and sentences on names that could not be resolved."""

    question: FocusQuestion
    notes: tuple[str, ...] = ()


def parse_focus(focus: Sequence[str], changed: Sequence[str], checkout: Path | None, root: Path) -> FocusRequest:
    """Read what a user aims at: names, files, ``FILE:LINE`` and ``FILE:FROM-TO``, and what differs from revisions.

    ``checkout`` is one of PyTorch, by default the working directory; ``root`` holds the installed torch.

    Raises:
        UsageError: a file, line, checkout or revision that there is not, or nothing of the compiler was changed.
    """
    if checkout is not None and not changed:
        raise UsageError("--checkout says where --changed looks: give --changed REV too.")
    matches = {what: _FILE.match(what) for what in focus}
    names = [what for what, match in matches.items() if match is None]
    lines = [_parse_lines(what, match, root) for what, match in matches.items() if match is not None]
    folder = (checkout or Path.cwd()).resolve()
    if changed and not (folder / "torch" / "_inductor").is_dir():
        raise UsageError(
            f"{folder} is no checkout of PyTorch (it has no torch/_inductor): name one with --checkout DIR."
        )
    if any(revision.startswith("-") for revision in changed):
        raise UsageError("--changed takes a revision of git, such as main or HEAD~1, not an option.")
    touched = [part for revision in changed for part in find_changes(folder, revision)]
    if changed and not touched:
        raise UsageError(
            f"Nothing under {folder}/torch differs from {' or '.join(changed)}: there is nothing to aim at."
        )
    mapped = [_find_installed_lines(part, root) for part in touched]
    spans = [*(span for spans, _ in (*lines, *mapped) for span in spans)]
    notes = tuple(note for _, notes in (*lines, *mapped) for note in notes)
    if not names and not spans:
        raise UsageError(f"What differs there is not in the installed torch: {' '.join(notes)}")
    return FocusRequest(FocusQuestion(tuple(names), tuple(dict.fromkeys(spans))), notes)


def focus_on_custom(custom: Sequence[LoadedCustom]) -> FocusRequest | None:
    """Return the focus of a campaign with passes of the user's own; None without one."""
    names = tuple(loaded.name for loaded in custom if loaded.kind == "pass")
    return FocusRequest(FocusQuestion(names)) if names else None


def _parse_lines(what: str, match: re.Match[str], root: Path) -> tuple[list[Span], list[str]]:
    first = int(match["first"] or 1)
    last = int(match["last"] or match["first"] or END)
    given = Path(match["path"])
    file = _find_relative_path(given, root, what)
    foreign = given.is_file() and given.resolve() != (root / file).resolve()
    text = (given if foreign else root / file).read_text(encoding="utf-8", errors="replace")
    length = len(text.splitlines())
    if first < 1 or first > min(last, length):
        raise UsageError(f"--focus {what}: {given.name} has lines 1 to {length}; write FILE:FROM-TO with FROM <= TO.")
    if not foreign:
        return [Span(file, first, last)], []
    names = tuple(part.name for part in _parse_source(file, text).find_at(first, last))
    return _find_installed_lines(TouchedFile(file, names), root)


def _find_relative_path(path: Path, root: Path, what: str) -> str:
    """The file of the installed torch that ``path`` means, however much of it was written."""
    parts = path.parts
    for start in (index for index in range(len(parts)) if parts[index] == "torch"):
        inside = Path(*parts[start:])
        if (root / inside).is_file():
            return inside.as_posix()
    ending = f"/{path.as_posix().lstrip('./')}"
    installed = (path.relative_to(root).as_posix() for path in sorted((root / "torch").rglob("*.py")))
    files = [file for file in installed if f"/{file}".endswith(ending)]
    if len(files) == 1:
        return files[0]
    if files:
        listed = ", ".join(files[:_MOST_NAMED])
        raise UsageError(f"--focus {what} may mean {listed}: write more of the path.")
    raise UsageError(
        f"--focus {what}: the installed torch has no such file; name one from its folder, torch/_inductor/..."
    )


def _find_installed_lines(touched: TouchedFile, root: Path) -> tuple[list[Span], list[str]]:
    """The lines of the installed torch that define what was touched elsewhere, and what is not there."""
    path = root / touched.file
    if not path.is_file():
        return [], [f"{touched.file} is not in the installed torch."]
    source = DefinitionSource.parse(touched.file, path.read_text(encoding="utf-8"))
    spans = [Span(touched.file, part.first, part.last) for name in touched.names for part in source.find_named(name)]
    notes = []
    if absent := [name for name in touched.names if name not in source.names]:
        notes.append(f"{touched.file}: the installed torch does not define {', '.join(absent[:_MOST_NAMED])}.")
    if touched.outside:
        notes.append(f"{touched.file}: {touched.outside} changed lines lie outside of every definition.")
    return spans, notes


# How often each aim of a campaign fired, was refused and by what, or what it lacked.

FOCUS = "focus"
"""Stands for the stage in the items of a case that ran lines which are aimed at."""
Counted = tuple[str, str, str, int]
"""Stage, rule, outcome and count, as a case covered it."""


@dataclass
class AimTally:
    """The counts of one aim.

    ``called`` counts operators that were called instead of lowered, ``cases`` those judged cases in which it matched.
    """

    aim: FocusAim
    fired: int = 0
    refused: int = 0
    called: int = 0
    cases: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    operators: set[str] = field(default_factory=set)
    lines: set[tuple[str, int]] = field(default_factory=set)

    @property
    def matched(self) -> int:
        """Count of its pattern's matches, whatever became of them; of an operator, count of its calls."""
        return self.fired + self.refused + self.called

    def count(self, coverage: Iterable[Counted], seen: FocusObservation) -> bool:
        """Add what one case covered; whether it matched."""
        before = self.matched
        for stage, rule, outcome, count in coverage:
            if (stage, rule) in self.aim.rules:
                self.fired += count * (outcome == "fired")
                self.refused += count * (outcome == "refused")
                self.called += count * (outcome == "fallback")
        self.fired += any(span in seen.spans for span in self.aim.spans)
        for (stage, rule, check), count in seen.checks.items():
            self.checks[check] += count * ((stage, rule) in self.aim.rules)
        self.checks += Counter()  # drops zeros
        self.operators |= seen.operators
        self.lines |= {place for place in seen.lines if any(span.contains(*place) for span in self.aim.spans)}
        self.cases += self.matched > before
        return self.matched > before

    @property
    def missing(self) -> str:
        """What a match lacks, where there was none: a reason, a setting, operators that no graph had."""
        if self.matched:
            return ""
        if self.aim.why_not:
            return self.aim.why_not
        absent = [place[0] for place in self.aim.operators if not self.operators.intersection(place)]
        if absent:
            return f"no graph called {', '.join(dict.fromkeys(absent))}"
        if self.aim.operators:
            return "every operator of its pattern was called, but never in its form"
        return "the lines never ran" if self.aim.spans else "nothing in the graphs was what it looks for"

    def describe(self) -> str:
        """The counts in words."""
        if not self.matched:
            return f"never matched; {self.missing}"
        if self.aim.spans:
            return f"ran in {self.fired} cases, {len(self.lines)} different lines"
        parts = [f"fired {self.fired}", f"refused {self.refused}" if self.aim.kind != "operator" else ""]
        parts.append(f"called, not lowered, {self.called}" if self.called else "")
        by = ", ".join(f"{check} ({count})" for check, count in self.checks.most_common(3))
        return ", ".join(filter(None, parts)) + (f"; refused by {by}" if by else "")

    def to_json(self) -> dict[str, object]:
        """The entry of the summary."""
        entry: dict[str, object] = {"fired": self.fired, "refused": self.refused, "matched": self.matched}
        entry |= {"kind": self.aim.kind, "stage": self.aim.stage or None, "cases": self.cases}
        if self.called:
            entry["called"] = self.called
        if self.aim.spans:
            entry["lines"] = len(self.lines)
        if self.aim.settings:
            entry["settings"] = dict(self.aim.settings)
        return entry | {"checks": dict(self.checks), "missing": self.missing or None}


class FocusTally:
    """The counts of a campaign with a focus."""

    def __init__(self, plan: FocusPlan) -> None:
        self.plan, self.unwatched = plan, set[str]()
        self.aims = [AimTally(aim) for aim in plan.aims]

    def count(self, coverage: Collection[Counted], seen: FocusObservation) -> None:
        """Add what one case covered."""
        self.unwatched.update(seen.unwatched)
        for aim in self.aims:
            aim.count(coverage, seen)

    def to_json(self) -> dict[str, dict[str, object]]:
        """The entries of the summary, by label."""
        return {tally.aim.label: tally.to_json() for tally in self.aims}

    def format_lines(self) -> list[str]:
        """The counts in words, one line for each aim, and what could not be watched."""
        watched = [f"{tally.aim.label}: {tally.describe()}" for tally in self.aims]
        return [*watched, *(f"Not watched: {what}" for what in sorted(self.unwatched))]
