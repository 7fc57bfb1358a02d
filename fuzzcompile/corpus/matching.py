"""Which finding a report is a hit of (ARCHITECTURE.md, "Contracts")."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.models import FindingRow, FormerNameRow, RunRow
from fuzzcompile.corpus.querying import starts_with
from fuzzcompile.model.signatures import (
    agree,
    drop_fingerprint,
    is_unproved,
    name_same_place,
    parse_fingerprint,
    raise_alike,
    renew,
)

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


def finding_of(session: Session, signature: str, report: ReportJson | None = None) -> FindingRow | None:
    """The finding that a report of this signature is a hit of; None if it is a new one.

    With the report, an error is a hit of a finding at the same place that raises alike, whatever the causes are called.
    Else a coarse signature is a hit of the only refined one of its place; where there are several, nobody can say which
    until the case has been minimized.
    """
    exact = session.scalar(select(FindingRow).where(FindingRow.signature == signature))
    if exact is not None:
        return exact
    rows = _of_place(session, signature)
    alike = raising_alike(session, report, rows) if report is not None else []
    if alike:
        return alike[0]
    cause = parse_fingerprint(signature)
    near = [
        row
        for row in rows
        if cause in (None, parse_fingerprint(row.signature)) and agree(renew(row.signature), signature)
    ]
    if near:
        return near[0] if len(near) == 1 else None
    former = select(FormerNameRow.finding_id).where(FormerNameRow.signature == signature).distinct()
    names = session.scalars(former.limit(2)).all()
    return session.get_one(FindingRow, names[0]) if len(names) == 1 else None


def twins_of(session: Session, finding: FindingRow, report: ReportJson) -> list[FindingRow]:
    """The other findings of the same proved culprit that raise as this report on ``finding`` says."""
    rows = [row for row in _of_place(session, finding.signature) if row.id != finding.id]
    return raising_alike(session, report, rows)


def raising_alike(session: Session, report: ReportJson, rows: list[FindingRow]) -> list[FindingRow]:
    """Those of the findings whose best run raises as the report says."""
    return [row for row in rows if raise_alike(report, best_report(session, row))]


def best_report(session: Session, finding: FindingRow) -> ReportJson:
    """The report on the finding's best run, whose details the finding itself leaves out."""
    return cast("ReportJson", session.get_one(RunRow, finding.best_run_id).report)


def keep_name(session: Session, finding: FindingRow, signature: str) -> None:
    """Let the signature of a hit go on naming the finding.

    A finding under the signature that an earlier version gave it takes the present one.
    """
    if signature == renew(finding.signature) != finding.signature:
        session.add(FormerNameRow(finding_id=finding.id, signature=finding.signature, merged_id=None))
        finding.signature = signature
    elif parse_fingerprint(signature) is not None and not _is_named(session, finding, signature):
        session.add(FormerNameRow(finding_id=finding.id, signature=signature, merged_id=None))
    session.flush()


def _is_named(session: Session, finding: FindingRow, signature: str) -> bool:
    named = (FormerNameRow.finding_id == finding.id, FormerNameRow.signature == signature)
    former = select(FormerNameRow.id).where(*named).limit(1)
    return signature == finding.signature or session.scalar(former) is not None


def _of_place(session: Session, signature: str) -> list[FindingRow]:
    """The findings of the same place in the compiler, oldest first; of an error without one, of the same message."""
    if is_unproved(signature):
        return []
    place = drop_fingerprint(signature)
    begins = ":".join(place.split(":")[:2])
    rows = session.scalars(select(FindingRow).where(starts_with(f"{begins}:")).order_by(FindingRow.id))
    return [row for row in rows if name_same_place(renew(row.signature), signature)]
