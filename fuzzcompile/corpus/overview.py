"""Everything that a report on a corpus shows, read in one transaction with a few statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.models import (
    CaseRow,
    EnvironmentRow,
    FindingRow,
    FormerNameRow,
    RelatedRow,
    ReplayRow,
    ReproducerRow,
    RunRow,
)
from fuzzcompile.corpus.querying import finding_records, record_of
from fuzzcompile.corpus.records import Finding, Related, Reproducer, StoredReplay


@dataclass(frozen=True)
class Judging:
    """When a campaign had judged a case, and whether without generated code."""

    campaign_id: int
    moment: datetime
    screened: bool


@dataclass(frozen=True)
class Overview:
    """The findings, the worst first, and what belongs to each by its row's id; the cases that campaigns judged.

    ``environments`` are those in which the reports were made, as far as they were stored, ``former`` the signatures
    that findings had before.
    """

    findings: Sequence[Finding]
    reproducers: Mapping[int, Reproducer]
    environments: Mapping[int, Mapping[str, object]]
    related: Mapping[int, Sequence[Related]]
    replays: Mapping[int, Sequence[StoredReplay]]
    former: Mapping[int, Sequence[str]]
    judgings: Sequence[Judging]


def overview(session: Session) -> Overview:
    """Read it all."""
    details = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
    findings = finding_records(session)
    return Overview(
        sorted(findings, key=lambda finding: finding.place),
        _best_reproducers(session, details),
        _environments(session, details),
        _related(session),
        _replays(session),
        _former(session),
        _judgings(session),
    )


def _best_reproducers(session: Session, details: Mapping[int, Mapping[str, object]]) -> dict[int, Reproducer]:
    query = (
        select(FindingRow.id, ReproducerRow, CaseRow.sha256)
        .join(ReproducerRow, FindingRow.best_reproducer_id == ReproducerRow.id)
        .outerjoin(CaseRow, ReproducerRow.case_id == CaseRow.id)
    )
    return {
        finding: record_of(Reproducer, row, case_sha256=case, environment=details.get(row.environment_id or 0))
        for finding, row, case in session.execute(query)
    }


def _environments(session: Session, details: Mapping[int, Mapping[str, object]]) -> dict[int, Mapping[str, object]]:
    """That of the reproducer's report where it speaks for the finding, else that of the best run."""
    query = (
        select(FindingRow.id, FindingRow.speaks_by_reproducer, ReproducerRow.environment_id, RunRow.environment_id)
        .outerjoin(ReproducerRow, FindingRow.best_reproducer_id == ReproducerRow.id)
        .outerjoin(RunRow, FindingRow.best_run_id == RunRow.id)
    )
    chosen = dict[int, Mapping[str, object]]()
    for key, speaks, of_script, of_run in session.execute(query):
        environment = (of_script if speaks else None) or of_run
        if environment is not None:
            chosen[key] = details[environment]
    return chosen


def _related(session: Session) -> dict[int, list[Related]]:
    by_finding = defaultdict[int, list[Related]](list)
    for row in session.scalars(select(RelatedRow).order_by(RelatedRow.score.desc(), RelatedRow.id)):
        by_finding[row.finding_id].append(record_of(Related, row))
    return dict(by_finding)


def _replays(session: Session) -> dict[int, list[StoredReplay]]:
    by_finding = defaultdict[int, list[StoredReplay]](list)
    for row in session.scalars(select(ReplayRow).order_by(ReplayRow.id)):
        by_finding[row.finding_id].append(replace(record_of(StoredReplay, row), runs=tuple(row.runs)))
    return dict(by_finding)


def _former(session: Session) -> dict[int, list[str]]:
    by_finding = defaultdict[int, list[str]](list)
    for finding, signature in session.execute(select(FormerNameRow.finding_id, FormerNameRow.signature)):
        by_finding[finding].append(signature)
    return dict(by_finding)


def _judgings(session: Session) -> list[Judging]:
    query = select(RunRow.campaign_id, RunRow.created, RunRow.screened).where(RunRow.campaign_id.is_not(None))
    return [
        Judging(campaign, moment, screened)
        for campaign, moment, screened in session.execute(query.order_by(RunRow.created, RunRow.id))
        if campaign is not None  # for the type checker: the query leaves these out
    ]
