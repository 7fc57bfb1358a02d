"""Takes another corpus into this one: its campaigns, judged cases, findings and coverage.

What is there already is recognised by content, so that a second copy changes nothing: a case by its source, an
environment by what it says, a run by case, environment and time, a campaign by start, seed and command. The sources of
a corpus that is not trusted are marked, and what its campaigns left over stays there: it would be run.
No campaign keeps its token, by which it would be taken for one of here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus import merging, recording
from fuzzcompile.corpus.importing import Arrived, Said, content_hash, put_said
from fuzzcompile.corpus.marking import Mark, status_of
from fuzzcompile.corpus.matching import best_report, finding_of
from fuzzcompile.corpus.models import (
    CampaignRow,
    CaseRow,
    CoverageRow,
    EnvironmentRow,
    FindingRow,
    FormerNameRow,
    RelatedRow,
    ReplayRow,
    ReproducerRow,
    RunRow,
    UmbrellaRow,
)
from fuzzcompile.corpus.querying import record_of, reproducer_record
from fuzzcompile.corpus.records import CaseRecord, Related, Replay, public_id

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


CHUNK = 200
# How a campaign ended that had not when it came here.
IMPORTED = "imported"


@dataclass
class Copied:
    """What has come so far; ``runs`` counts the new ones, ``of`` those of the other corpus that were looked at."""

    trusted: bool
    runs: int = 0
    of: int = 0
    cases: int = 0
    environments: dict[int, int] = field(default_factory=dict)
    campaigns: dict[int, int] = field(default_factory=dict)


def put_campaigns(session: Session, other: Session, copied: Copied) -> None:
    """Store the other corpus's environments and campaigns."""
    for environment in other.scalars(select(EnvironmentRow)):
        copied.environments[environment.id] = recording.put_environment(session, environment.details)
    for row in other.scalars(select(CampaignRow).order_by(CampaignRow.id)):
        same = (CampaignRow.started == row.started, CampaignRow.seed == row.seed, CampaignRow.command == row.command)
        known = session.scalar(select(CampaignRow).where(*same))
        if known is None:
            known = CampaignRow(**_columns(row, "id", "environment_id", "token"))
            known.environment_id = copied.environments[row.environment_id]
            known.ended = row.ended or IMPORTED  # it does not run here, and holds no part of a stream
            if not copied.trusted:
                known.counters = {name: value for name, value in row.counters.items() if name != "left_over"}
            session.add(known)
            session.flush()
        copied.campaigns[row.id] = known.id


def runs_after(other: Session, last: int) -> Sequence[tuple[RunRow, CaseRow, str | None]]:
    """The next runs of the other corpus, each with its case and the signature of its finding."""
    query = (
        select(RunRow, CaseRow, FindingRow.signature)
        .join(CaseRow, RunRow.case_id == CaseRow.id)
        .outerjoin(FindingRow, RunRow.finding_id == FindingRow.id)
        .where(RunRow.id > last)
        .order_by(RunRow.id)
        .limit(CHUNK)
    )
    return [(run, case, signature) for run, case, signature in other.execute(query)]


def put_copies(session: Session, runs: Sequence[tuple[RunRow, CaseRow, str | None]], copied: Copied) -> Copied:
    """Store runs of another corpus, as far as they are not there; return what has come with them."""
    now = replace(copied)  # what an outage undoes is done again, and counted once
    for run, case, signature in runs:
        put_copy(session, run, case, signature, now)
    return now


def put_copy(session: Session, run: RunRow, case: CaseRow, signature: str | None, copied: Copied) -> None:
    """Store a run of another corpus, unless it is there."""
    copied.of += 1
    # A case passes for one that is here by its hash: that of what it holds, whatever the other corpus says.
    sha256 = content_hash(case.source) if case.source else case.sha256
    environment = copied.environments[run.environment_id]
    same = (CaseRow.sha256 == sha256, RunRow.environment_id == environment, RunRow.created == run.created)
    if session.scalar(select(RunRow.id).join(CaseRow, RunRow.case_id == CaseRow.id).where(*same).limit(1)) is not None:
        return
    fresh = session.scalar(select(CaseRow.id).where(CaseRow.sha256 == sha256)) is None
    record = record_of(CaseRecord, case, sha256=sha256, stream=run.stream, index=run.stream_index)
    campaign = None if run.campaign_id is None else copied.campaigns[run.campaign_id]
    row = session.get_one(EnvironmentRow, environment)
    report = cast("ReportJson", run.report)
    recording.put_run(
        session, campaign, record, row.details, report, (),
        screened=run.screened, created=run.created, signature=signature, imported=not copied.trusted,
    )  # fmt: skip
    copied.runs, copied.cases = copied.runs + 1, copied.cases + fresh


def findings_of(other: Session) -> Iterator[FindingRow]:
    """The findings of the other corpus, oldest first."""
    yield from other.scalars(select(FindingRow).order_by(FindingRow.id))


def put_finding(session: Session, other: Session, row: FindingRow, *, trusted: bool) -> Arrived:
    """Add what the other corpus knows of a finding whose runs have been copied.

    Raises:
        ValueError: none of its runs is here.
    """
    report = best_report(other, row)
    known = finding_of(session, row.signature, report)
    if known is None:
        raise ValueError("it has no runs")
    put_said(session, known.id, _said(other, row), known.hits)
    finding_id, merged = known.id, list[int]()
    for reproducer in other.scalars(select(ReproducerRow).where(ReproducerRow.finding_id == row.id)):
        record = reproducer_record(other, reproducer)
        record = replace(record, sha256=content_hash(record.source))
        kept = recording.put_reproducer(session, finding_id, record, imported=not trusted)
        merged += kept.merged
    left = finding_of(session, row.signature, report)
    name = public_id(known.id if left is None else left.id)
    return Arrived(f"{public_id(row.id)} {row.signature}", "known", name, merged=tuple(map(public_id, merged)))


def put_coverage(session: Session, other: Session) -> None:
    """Add what the other corpus reached; a count that both have is the greater."""
    identity = ("torch", "stage", "pass_name", "rewrite", "outcome")
    known = {tuple(getattr(row, name) for name in identity): row for row in session.scalars(select(CoverageRow))}
    first = select(CoverageRow, CaseRow.sha256).join(CaseRow, CoverageRow.first_case_id == CaseRow.id)
    for row, sha256 in other.execute(first):
        have = known.get(tuple(getattr(row, name) for name in identity))
        if have is not None:
            have.count = max(have.count, row.count)
            continue
        case = session.scalar(select(CaseRow.id).where(CaseRow.sha256 == sha256))
        if case is not None:
            session.add(CoverageRow(**_columns(row, "id", "first_case_id"), first_case_id=case))


def put_groups(session: Session, other: Session) -> None:
    """Add what a person said of groups of findings, where nothing is said of them here."""
    for row in other.scalars(select(UmbrellaRow)):
        if session.get(UmbrellaRow, row.name) is None:
            session.add(UmbrellaRow(**_columns(row)))


def number_of_runs(other: Session) -> int:
    """How many runs the other corpus has."""
    return other.scalar(select(func.count()).select_from(RunRow)) or 0


def original_of(other: Session, row: FindingRow) -> str | None:
    """The signature of the finding of which the row's is a duplicate."""
    return None if row.duplicate_of_id is None else other.get_one(FindingRow, row.duplicate_of_id).signature


def _said(other: Session, row: FindingRow) -> Said:
    marked = row.status != merging.OPEN or row.note is not None
    related = other.scalars(select(RelatedRow).where(RelatedRow.finding_id == row.id))
    replays = other.scalars(select(ReplayRow).where(ReplayRow.finding_id == row.id).order_by(ReplayRow.id))
    return Said(
        names=tuple(other.scalars(select(FormerNameRow.signature).where(FormerNameRow.finding_id == row.id))),
        hits=row.hits,
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        mark=Mark(status_of(row.status), row.issue, original_of(other, row), row.note) if marked else None,
        searched=row.searched,
        queries=tuple(row.queries or ()),
        related=tuple(record_of(Related, link) for link in related),
        replays=tuple((record_of(Replay, replay), replay.created) for replay in replays),
    )


def _columns(row: EnvironmentRow | CampaignRow | CoverageRow | UmbrellaRow, *left_out: str) -> dict[str, object]:
    return {column.key: getattr(row, column.key) for column in row.__table__.columns if column.key not in left_out}
