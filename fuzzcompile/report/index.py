"""The index of a folder of drafts: what is fit to be filed, the worst first, then what is refused, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fuzzcompile.model.severity import Severity
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.filing import Refusal
from fuzzcompile.report.wording import title, why_not

INDEX = "INDEX.md"
_ROW = re.compile(r"^\| (?:\[(?P<link>\w+)\]\(\w+\.md\)|(?P<name>\w+)) \| (?P<severity>\w+) \| (?P<rest>.*) \|$")
_CELLS = re.compile(r"(?<!\\) \| ")


@dataclass(frozen=True)
class Entry:
    """A finding in the index; ``reason`` and ``remedy`` are None where it has a draft."""

    finding: str
    severity: str
    title: str
    reason: str | None = None
    remedy: str | None = None

    @property
    def rank(self) -> tuple[int, int, str]:
        """Sorts the worst first, and by number within one severity."""
        known = self.severity in list(Severity)
        number = re.search(r"\d+", self.finding)
        return Severity(self.severity).rank if known else len(Severity), int(number[0]) if number else 0, self.finding


def entry_of(finding: str, facts: IssueFacts, refusal: Refusal | None) -> Entry:
    """The entry of a finding by its public id."""
    words = title(facts) if facts.is_bug else why_not(facts)
    severity = str(facts.severity or "none")
    if refusal is None:
        return Entry(finding, severity, words)
    return Entry(finding, severity, words, refusal.reason, refusal.remedy)


def with_entry(index: str, entry: Entry, replaces: str | None = None) -> str:
    """The text of an index with one entry added or replaced; what a person wrote between the tables is lost.

    ``replaces`` names a finding that was merged into that of the entry.
    """
    gone = (entry.finding, replaces)
    return index_of([*(known for known in _entries(index) if known.finding not in gone), entry])


def index_of(entries: Iterable[Entry]) -> str:
    """The text of an index, in Markdown."""
    ordered = sorted(entries, key=lambda entry: entry.rank)
    drafts = [entry for entry in ordered if entry.reason is None]
    refused = [entry for entry in ordered if entry.reason is not None]
    lines = ["# Drafts", "", f"{len(drafts)} to be filed, {len(refused)} refused. The worst come first.", ""]
    if drafts:
        lines += ["| draft | severity | what |", "|---|---|---|"]
        lines += [_row(f"[{entry.finding}]({entry.finding}.md)", entry.severity, entry.title) for entry in drafts]
    if refused:
        lines += ["", "## Refused", "", "| finding | severity | what | why not | what would change that |"]
        lines += ["|---|---|---|---|---|"]
        lines += [
            _row(entry.finding, entry.severity, entry.title, entry.reason or "", entry.remedy or "")
            for entry in refused
        ]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _entries(index: str) -> Iterator[Entry]:
    for line in index.splitlines():
        row = _ROW.match(line)
        if row is None or row["name"] in ("draft", "finding"):
            continue
        words, *refused = (cell.replace("\\|", "|") for cell in _CELLS.split(row["rest"]))
        yield Entry(row["link"] or row["name"], row["severity"], words, *refused[:2])
