"""What was stored since a moment: found by the ids of rows, which grow in the order in which they are stored."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.models import CoverageRow, FindingRow, RunRow
from fuzzcompile.corpus.records import Coverage


@dataclass(frozen=True)
class Since:
    """The last rows that are known."""

    coverage: int
    finding: int
    run: int


@dataclass(frozen=True)
class News:
    """What is new: what a compiler reached first, the signatures of new findings, and those that were hit."""

    since: Since
    reached: tuple[Coverage, ...] = ()
    signatures: frozenset[str] = frozenset()
    hit: frozenset[str] = frozenset()


def news(session: Session, compiler: str, since: Since | None) -> News:
    """What was stored since; with None, only from where on the next call is to look."""
    keys = (CoverageRow.id, FindingRow.id, RunRow.id)
    now = Since(*(session.scalar(select(func.max(key))) or 0 for key in keys))
    if since is None:
        return News(now)
    columns = (CoverageRow.stage, CoverageRow.pass_name, CoverageRow.rewrite, CoverageRow.outcome, CoverageRow.count)
    rows = session.execute(select(*columns).where(CoverageRow.id > since.coverage, CoverageRow.torch == compiler))
    new = session.scalars(select(FindingRow.signature).where(FindingRow.id > since.finding))
    hits = select(RunRow.finding_id).where(RunRow.id > since.run, RunRow.finding_id.is_not(None))
    hit = session.scalars(select(FindingRow.signature).where(FindingRow.id.in_(hits)))
    reached = tuple(Coverage(*row) for row in rows)  # type: ignore[arg-type]  # the columns, in order
    return News(now, reached, frozenset(new), frozenset(hit))
