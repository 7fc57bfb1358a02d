"""A replay across versions as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date

from fuzzcompile.corpus.replay.record import Record, Records
from fuzzcompile.corpus.replay.text import since


def table(records: Records, command: str, today: date) -> str:
    """The page: how it was made, the table with the worst first, and what gave no answer.

    Args:
        records: what was found out.
        command: the command line, for whoever wants to make it again.
        today: when it was made.
    """
    return "\n".join(_lines(records, command, today)) + "\n"


def _lines(records: Records, command: str, today: date) -> Iterator[str]:
    yield from ("# Findings across versions of torch", "")
    yield from (f"Made on {today.isoformat()} by", "", f"    {command}", "", "on")
    yield ""
    for version in records.versions:
        build, git = records.builds[version]
        yield f"- torch {build}" + (f" ({git[:12]})" if git else "")
    yield ""
    headings = ["finding", "what", "severity", *records.versions, "since", "fixed in"]
    yield _row(headings)
    yield _row(["---"] * len(headings))
    yield from (_row(_cells(record, records.versions)) for record in records.all)
    yield from (
        "",
        '"Since" is the oldest version tried on which it fails, "fixed in" the first later one on which it passes.',
    )
    notes = list(_notes(records))
    yield from (("", *notes) if notes else ())


def _cells(record: Record, versions: list[str]) -> Iterator[str]:
    finding, subject = record.subject.finding, record.subject
    yield f"{finding.public_id} `{finding.signature}`"
    yield subject.what
    yield str(subject.severity or "-").replace("_", " ")
    for version in versions:
        status = record.status(version) or "-"
        yield f"{status}, **regression**" if version in record.regressions else status
    yield since(record)
    yield record.history.fixed_in or "-"


def _notes(records: Records) -> Iterator[str]:
    """Why where it is not plain: what gave no answer, and what failed in another way."""
    for record in records.all:
        for note in record.notes:
            yield f"- {record.subject.finding.public_id}: {note}."
        for version, result in record.results.items():
            if result.replay.status not in ("failing", "fixed"):
                yield f"- {record.subject.finding.public_id} on {version}, {result.replay.status}: {result.why}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
