"""Names after --focus and --changed, and lines of the installed compiler. Needs no torch."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzzcompile.fuzz.focus.code_graph import DefinitionSource
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.focus_plan import END, FocusAim, FocusObservation, FocusPlan, FocusQuestion, Span
from fuzzcompile.run.subprocesses import capture_output

# Which definitions a diff of a checkout touches: lines differ from the installed torch's, names seldom do.

_SECONDS = 120.0


def find_changes(checkout: Path, revision: str) -> list[tuple[str, list[str]]]:
    """The files of torch that differ from ``revision`` in a checkout, with the definitions that differ.

    The empty name stands for what is in no definition; comments and places do not count.

    Raises:
        UsageError: git does not know the revision, or the folder is no checkout.
        EnvironmentUnfit: there is no git, or it hangs.
    """
    changes = []
    for file in _run_git(checkout, "diff", "--name-only", "--no-renames", revision, "--", "torch").splitlines():
        if file.endswith(".py"):
            path, was = checkout / file, ""
            # It is new, or the revision is a range that git can diff and not show.
            with contextlib.suppress(UsageError):
                was = _run_git(checkout, "show", f"{revision.split('..')[0]}:{file}")
            after = _parse_source(file, path.read_text(encoding="utf-8") if path.is_file() else "").codes
            before = _parse_source(file, was).codes
            names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
            changes += [(file, names)] if names else []
    return changes


def _parse_source(file: str, text: str) -> DefinitionSource:
    try:
        return DefinitionSource.parse(file, text)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{file} of the checkout cannot be read as Python ({error}): mend it first.") from error


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


def parse_focus(focus: Sequence[str], changed: Sequence[str], checkout: Path | None, root: Path) -> FocusQuestion:
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
    touched = [each for revision in changed for each in find_changes(folder, revision)]
    if changed and not touched:
        raise UsageError(
            f"Nothing under {folder}/torch differs from {' or '.join(changed)}: there is nothing to aim at."
        )
    mapped = [_find_installed_lines(file, names, root) for file, names in touched]
    spans = [*(span for spans, _ in (*lines, *mapped) for span in spans)]
    notes = tuple(note for _, notes in (*lines, *mapped) for note in notes)
    if not names and not spans:
        raise UsageError(f"What differs there is not in the installed torch: {' '.join(notes)}")
    return FocusQuestion(tuple(names), tuple(dict.fromkeys(spans)), notes=notes)


def focus_on_custom(custom: Sequence[LoadedCustom]) -> FocusQuestion | None:
    """Return the focus of a campaign with passes of the user's own; None without one."""
    names = tuple(loaded.name for loaded in custom if loaded.kind == "pass")
    return FocusQuestion(names) if names else None


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
    return _find_installed_lines(file, [part.name for part in _parse_source(file, text).find_at(first, last)], root)


def _find_relative_path(path: Path, root: Path, what: str) -> str:
    """The file of the installed torch that ``path`` means, however much of it was written."""
    given = f"/{path.as_posix().lstrip('./')}"
    installed = [f"/{known.relative_to(root).as_posix()}" for known in sorted((root / "torch").rglob("*.py"))]
    files = [known[1:] for known in installed if known.endswith(given) or given.endswith(known)]
    if len(files) == 1:
        return files[0]
    if files:
        listed = ", ".join(files[:_MOST_NAMED])
        raise UsageError(f"--focus {what} may mean {listed}: write more of the path.")
    raise UsageError(
        f"--focus {what}: the installed torch has no such file; name one from its folder, torch/_inductor/..."
    )


def _find_installed_lines(file: str, names: Sequence[str], root: Path) -> tuple[list[Span], list[str]]:
    path = root / file
    if not path.is_file():
        return [], [f"{file} is not in the installed torch."]
    source = DefinitionSource.parse(file, path.read_text(encoding="utf-8"))
    notes = []
    if absent := [name for name in names if name and name not in source.names]:
        notes.append(f"{file}: the installed torch does not define {', '.join(absent[:_MOST_NAMED])}.")
    if "" in names:
        notes.append(f"{file}: some of the changes lie outside of every definition.")
    return [Span(file, part.first, part.last) for part in source.definitions if part.name in names], notes


# How often each aim of a campaign fired, was refused and by what, or what it lacked.

FOCUS = "focus"
"""Stands for the stage in the items of a case that ran lines which are aimed at."""
Counted = tuple[str, str, str, int]
"""Stage, rule, outcome and count, as a case covered it."""


_OUTCOMES = ("fired", "refused", "fallback")


@dataclass
class _AimTally:
    """The counts of one aim.

    A fallback is an operator that was called instead of lowered, ``cases`` are the judged ones in which it matched.
    """

    aim: FocusAim
    counts: Counter[str] = field(default_factory=Counter)  # by outcome
    cases: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    operators: set[str] = field(default_factory=set)
    lines: set[tuple[str, int]] = field(default_factory=set)

    @property
    def matched(self) -> int:
        """Count of its pattern's matches, whatever became of them; of an operator, count of its calls."""
        return sum(self.counts[outcome] for outcome in _OUTCOMES)

    def count(self, coverage: Iterable[Counted], seen: FocusObservation) -> None:
        before = self.matched
        for stage, rule, outcome, count in coverage:
            if (stage, rule) in self.aim.rules:
                self.counts[outcome] += count
        self.counts["fired"] += any(span in seen.spans for span in self.aim.spans)
        for (stage, rule, check), count in seen.checks.items():
            self.checks[check] += count * ((stage, rule) in self.aim.rules)
        self.checks += Counter()  # drops zeros
        self.operators |= seen.operators
        self.lines |= {place for place in seen.lines if any(span.contains(*place) for span in self.aim.spans)}
        self.cases += self.matched > before

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
        if not self.matched:
            return f"never matched; {self.missing}"
        fired, refused, called = (self.counts[outcome] for outcome in _OUTCOMES)
        if self.aim.spans:
            return f"ran in {fired} cases, {len(self.lines)} different lines"
        parts = [f"fired {fired}", f"refused {refused}" if self.aim.kind != "operator" else ""]
        parts.append(f"called, not lowered, {called}" if called else "")
        by = ", ".join(f"{check} ({count})" for check, count in self.checks.most_common(3))
        return ", ".join(filter(None, parts)) + (f"; refused by {by}" if by else "")

    def to_json(self) -> dict[str, object]:
        fired, refused, called = (self.counts[outcome] for outcome in _OUTCOMES)
        entry: dict[str, object] = {"fired": fired, "refused": refused, "matched": self.matched}
        entry |= {"kind": self.aim.kind, "stage": self.aim.stage or None, "cases": self.cases}
        if called:
            entry["called"] = called
        if self.aim.spans:
            entry["lines"] = len(self.lines)
        if self.aim.settings:
            entry["settings"] = dict(self.aim.settings)
        return entry | {"checks": dict(self.checks), "missing": self.missing or None}


class FocusTally:
    """The counts of a campaign with a focus."""

    def __init__(self, plan: FocusPlan) -> None:
        self.plan, self.unwatched = plan, set[str]()
        self.aims = [_AimTally(aim) for aim in plan.aims]

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
