"""What a person says of a finding or of a group of them: kept through hits, merges, exports and imports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast, get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.models import FindingRow, UmbrellaRow
from fuzzcompile.corpus.querying import finding_id
from fuzzcompile.corpus.records import Status, public_id
from fuzzcompile.model.errors import UsageError

# The project whose issues ``#123`` means.
PROJECT: Final = "pytorch/pytorch"
_SHORT = re.compile(r"(?P<project>[\w.-]+/[\w.-]+)?#(?P<number>\d+)")
_LINK = re.compile(r"https?://[^\s/]+/\S+")


@dataclass(frozen=True)
class Mark:
    """What is said: a status, the issue of a ``known`` one, the finding of which it is a ``dup``, a note.

    Without an issue or a note of its own, a mark keeps those of an earlier one; ``open`` keeps the note alone.
    """

    status: Status
    issue: str | None = None
    duplicate_of: str | None = None
    note: str | None = None


def issue_url(text: str) -> str:
    """The URL of an issue named as ``#123``, ``owner/repository#123`` or a URL.

    Raises:
        UsageError: it is none of these.
    """
    short = _SHORT.fullmatch(text)
    if short is not None:
        return f"https://github.com/{short['project'] or PROJECT}/issues/{short['number']}"
    if _LINK.fullmatch(text):
        return text
    raise UsageError(f"{text!r} is no issue: give #123 (of {PROJECT}), owner/repository#123, or a URL.")


def status_of(text: str) -> Status:
    """The status of that name.

    Raises:
        UsageError: there is none.
    """
    if text not in get_args(Status):
        raise UsageError(f"{text!r} is no status: give one of {', '.join(get_args(Status))}.")
    return cast("Status", text)


def put_mark(session: Session, name: str, mark: Mark) -> tuple[str, Mark]:
    """Store what is said of the finding or group called ``name``.

    Returns:
        How it is called, and all that is now said of it.

    Raises:
        UsageError: there is no such finding or group, or a finding would be a duplicate of itself.
    """
    group = session.scalar(select(FindingRow.umbrella).where(FindingRow.umbrella == name).limit(1))
    if group is not None or session.get(UmbrellaRow, name) is not None:
        return name, _mark_group(session, name, mark)
    row = session.get_one(FindingRow, finding_id(session, name))
    _say(row, mark)
    row.duplicate_of_id = _original(session, row, mark)
    original = None if row.duplicate_of_id is None else public_id(row.duplicate_of_id)
    return public_id(row.id), Mark(mark.status, row.issue, original, row.note)


def _mark_group(session: Session, name: str, mark: Mark) -> Mark:
    if mark.duplicate_of is not None:
        raise UsageError(f"{name} is a group, which is no duplicate of a finding: mark it known, with its issue.")
    row = session.get(UmbrellaRow, name) or UmbrellaRow(name=name)
    session.add(row)
    _say(row, mark)
    return Mark(mark.status, row.issue, note=row.note)


def _say(row: FindingRow | UmbrellaRow, mark: Mark) -> None:
    row.status, row.note = mark.status, mark.note or row.note
    row.issue = None if mark.status == "open" else mark.issue or row.issue


def _original(session: Session, row: FindingRow, mark: Mark) -> int | None:
    """The finding that the marked one is a duplicate of, itself no duplicate of the marked one."""
    if mark.duplicate_of is None:
        return None
    original = finding_id(session, mark.duplicate_of)
    following: int | None = original
    while following is not None:
        if following == row.id:
            raise UsageError(f"{public_id(row.id)} would be a duplicate of itself: name the finding that stays.")
        following = session.get_one(FindingRow, following).duplicate_of_id
    return original
