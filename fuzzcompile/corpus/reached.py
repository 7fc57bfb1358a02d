"""What was reached, as it is read from a corpus."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.models import CaseRow, CoverageRow, RunRow
from fuzzcompile.corpus.records import StoredCoverage


def coverage(session: Session, torch: str | None, until: datetime | None) -> list[StoredCoverage]:
    """The rewrites seen under all torch versions, or under one; or by cases that campaigns judged until a moment.

    A case judged more than once counts from its last run: which of them was the first to reach something is not kept.
    """
    chosen = [] if torch is None else [CoverageRow.torch == torch]
    if until is not None:
        judged = select(RunRow.case_id).where(RunRow.campaign_id.is_not(None))
        early = judged.group_by(RunRow.case_id).having(func.max(RunRow.created) <= until)
        chosen.append(CoverageRow.first_case_id.in_(early))
    rows = session.execute(
        select(CoverageRow, CaseRow.sha256)
        .join(CaseRow, CoverageRow.first_case_id == CaseRow.id)
        .where(*chosen)
        .order_by(
            CoverageRow.torch,
            CoverageRow.stage,
            CoverageRow.pass_name,
            CoverageRow.rewrite,
            CoverageRow.outcome,
        )
    )
    return [
        StoredCoverage(
            torch=row.torch,
            stage=row.stage,
            pass_name=row.pass_name,
            rewrite=row.rewrite,
            outcome=row.outcome,
            count=row.count,
            first_case_id=row.first_case_id,
            first_case_sha256=sha256,
        )
        for row, sha256 in rows
    ]
