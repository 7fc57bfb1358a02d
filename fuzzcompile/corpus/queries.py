"""What is read from a corpus, each as the plain records of ``records.py``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, distinct, func, select
from sqlalchemy.orm import QueryableAttribute, Session

from fuzzcompile.corpus.failures import UnknownFindingError
from fuzzcompile.corpus.models import (
    CampaignRow,
    CaseRow,
    CoverageRow,
    EnvironmentRow,
    FindingRow,
    ReproducerRow,
    RunRow,
)
from fuzzcompile.corpus.records import (
    CaseRecord,
    Counters,
    Finding,
    Reproducer,
    Seed,
    StoredCampaign,
    StreamRun,
    public_id,
)
from fuzzcompile.corpus.severity import severity

FINDINGS_NAMED = 10


def recorded_indices(session: Session, stream: str) -> set[int]:
    """The places of a stream that some run has judged."""
    query = select(RunRow.stream_index).where(RunRow.stream == stream, RunRow.stream_index.is_not(None))
    return {index for index in session.scalars(query) if index is not None}


def has_source(session: Session, sha256: str, stream: str | None) -> bool:
    """Whether a case of that hash was judged, in one stream or in any."""
    query = select(RunRow.id).join(CaseRow, RunRow.case_id == CaseRow.id).where(CaseRow.sha256 == sha256)
    if stream is not None:
        query = query.where(RunRow.stream == stream)
    return session.scalar(query.limit(1)) is not None


def case(session: Session, sha256: str) -> CaseRecord | None:
    """The stored case of that hash."""
    row = session.scalar(select(CaseRow).where(CaseRow.sha256 == sha256))
    if row is None:
        return None
    return CaseRecord(
        sha256=row.sha256,
        source=row.source,
        origin=row.origin,
        spec=row.spec,
        choices=row.choices,
        idioms=tuple(row.idioms),
        near_misses=tuple(row.near_misses),
        features=tuple(row.features),
    )


def stream_runs(session: Session, stream: str, torch: str) -> list[StreamRun]:
    """The judged cases of a stream in its order, each once."""
    firsts = _firsts(session, torch)
    query = (
        select(RunRow, CaseRow.features)
        .join(CaseRow, RunRow.case_id == CaseRow.id)
        .where(RunRow.stream == stream, RunRow.stream_index.is_not(None))
        .order_by(RunRow.stream_index, RunRow.id)
    )
    opened = set(session.scalars(select(func.min(RunRow.id)).where(RunRow.is_bug).group_by(RunRow.finding_id)))
    found: dict[int, StreamRun] = {}
    for run, features in session.execute(query):
        new = firsts.get(run.case_id, 0)
        found[run.stream_index] = StreamRun(run.stream_index, tuple(features), run.screened, new, run.id in opened)
    return list(found.values())


def seeds(session: Session, torch: str, profile: Mapping[str, Any], limit: int) -> list[Seed]:
    """Cases with a recipe of this profile: those that were first to reach most, oldest first among equals."""
    firsts = _firsts(session, torch)
    query = (
        select(CaseRow.id, CaseRow.sha256, CaseRow.choices, CaseRow.spec, RunRow.report)
        .join(RunRow, RunRow.case_id == CaseRow.id)
        .where(CaseRow.choices.is_not(None), CaseRow.id.in_(firsts))
        .order_by(CaseRow.id, RunRow.id)
    )
    found: dict[int, Seed] = {}
    for key, sha256, choices, spec, report in session.execute(query):
        if choices is not None and (spec or {}).get("profile") == profile:
            step = ((report or {}).get("evidence") or {}).get("float64_step")
            found[key] = Seed(sha256, choices, firsts[key], step)
    return sorted(found.values(), key=lambda seed: -seed.firsts)[:limit]


def _firsts(session: Session, torch: str) -> dict[int, int]:
    """How much each case was the first to reach under a torch, by the case's id."""
    query = (
        select(CoverageRow.first_case_id, func.count())
        .where(CoverageRow.torch == torch)
        .group_by(CoverageRow.first_case_id)
    )
    return dict(session.execute(query).all())


def environment_of(session: Session, finding: int) -> dict[str, Any]:
    """The environment of the finding's best run."""
    query = (
        select(EnvironmentRow.details)
        .join(RunRow, RunRow.environment_id == EnvironmentRow.id)
        .join(FindingRow, FindingRow.best_run_id == RunRow.id)
        .where(FindingRow.id == finding)
    )
    return dict(session.scalar(query) or {})


def findings(session: Session, *conditions: ColumnElement[bool]) -> list[Finding]:
    """The findings that fulfil all conditions, oldest first."""
    query = (
        select(FindingRow, RunRow.report, CaseRow)
        .join(RunRow, FindingRow.best_run_id == RunRow.id)
        .join(CaseRow, RunRow.case_id == CaseRow.id)
        .where(*conditions)
        .order_by(FindingRow.id)
    )
    rows = session.execute(query).all()
    torch_versions = _torch_versions(session)
    return [
        Finding(
            id=row.id,
            signature=row.signature,
            status=row.status,
            verdict=row.verdict,
            confidence=row.confidence,
            culprit=row.culprit,
            evidence=row.evidence,
            hits=row.hits,
            first_seen=row.first_seen,
            last_seen=row.last_seen,
            torch_versions=tuple(torch_versions[row.id]),
            report=report,
            source=case.source,
            source_sha256=case.sha256,
        )
        for row, report, case in rows
    ]


def hit_by(campaign_id: int) -> ColumnElement[bool]:
    """The condition that a run of this campaign hit the finding."""
    return FindingRow.id.in_(select(RunRow.finding_id).where(RunRow.campaign_id == campaign_id))


def finding_id(session: Session, name: str | int) -> int:
    """Resolve a signature, an id (3, "3", "F3") or the beginning of a signature, in that order."""
    query = select(FindingRow.id, FindingRow.signature).order_by(FindingRow.id)
    signatures = dict(session.execute(query).all())
    by_signature = {signature: key for key, signature in signatures.items()}
    if name in by_signature:
        return by_signature[str(name)]
    number = re.fullmatch(r"[fF]?(\d+)", str(name).strip())
    if number and int(number[1]) in signatures:
        return int(number[1])
    matches = [key for key, signature in signatures.items() if name and signature.startswith(str(name))]
    if len(matches) == 1:
        return matches[0]
    raise UnknownFindingError(_nothing_by(name, matches, signatures))


def best_reproducer(session: Session, finding: int) -> Reproducer | None:
    """A confirmed one before others, then one of the worst face, then the shortest."""
    rows = session.scalars(select(ReproducerRow).where(ReproducerRow.finding_id == finding)).all()
    if not rows:
        return None
    row = min(rows, key=lambda row: (not row.confirmed, -severity(row.report), row.lines, row.id))
    return Reproducer(
        source=row.source,
        sha256=row.sha256,
        lines=row.lines,
        kind=row.kind,
        confirmed=row.confirmed,
        torch=row.torch,
        report=row.report,
        neighbour=row.neighbour,
    )


def counters(session: Session, stream: str | None, torch: str | None, until: datetime | None) -> Counters:
    """Counts over all runs, or those of one stream, under one torch, or by a campaign until a moment."""
    chosen = [] if stream is None else [RunRow.stream == stream]
    if torch is not None:
        chosen.append(RunRow.environment_id.in_(select(EnvironmentRow.id).where(EnvironmentRow.torch == torch)))
    if until is not None:
        chosen += [RunRow.campaign_id.is_not(None), RunRow.created <= until]
    by_verdict = session.execute(
        select(RunRow.verdict, func.count()).where(*chosen).group_by(RunRow.verdict).order_by(RunRow.verdict)
    )
    verdicts = dict(by_verdict.all())
    return Counters(
        cases=_count_distinct(session, RunRow.case_id, chosen),
        runs=sum(verdicts.values()),
        by_verdict=verdicts,
        findings=_count_distinct(session, RunRow.finding_id, chosen),
    )


def campaigns(session: Session) -> list[StoredCampaign]:
    """Every campaign, oldest first."""
    rows = session.execute(
        select(CampaignRow, EnvironmentRow.details)
        .join(EnvironmentRow, CampaignRow.environment_id == EnvironmentRow.id)
        .order_by(CampaignRow.id)
    )
    return [
        StoredCampaign(
            id=row.id,
            seed=row.seed,
            settings=row.settings,
            command=row.command,
            fuzzcompile_version=row.fuzzcompile_version,
            environment=environment,
            counters=row.counters,
            started=row.started,
            last_heard=row.last_heard,
            finished=row.finished,
            ended=row.ended,
        )
        for row, environment in rows
    ]


def _torch_versions(session: Session) -> dict[int, list[str]]:
    """The torch versions that hit each finding, in the order in which they did."""
    versions: dict[int, list[str]] = defaultdict(list)
    rows = session.execute(
        select(RunRow.finding_id, EnvironmentRow.torch)
        .join(EnvironmentRow, RunRow.environment_id == EnvironmentRow.id)
        .group_by(RunRow.finding_id, EnvironmentRow.torch)
        .order_by(func.min(RunRow.id))
    )
    for key, torch in rows:
        if key is not None:
            versions[key].append(torch)
    return versions


def _count_distinct(session: Session, column: QueryableAttribute[Any], chosen: list[ColumnElement[bool]]) -> int:
    return session.scalar(select(func.count(distinct(column))).where(*chosen)) or 0


def _nothing_by(name: str | int, matches: list[int], signatures: dict[int, str]) -> str:
    named = matches or list(signatures)
    listed = ", ".join(f"{public_id(key)} ({signatures[key]})" for key in named[:FINDINGS_NAMED])
    more = f" and {len(named) - FINDINGS_NAMED} more" if len(named) > FINDINGS_NAMED else ""
    if matches:
        return f"{str(name)!r} could be {listed}{more}: give the id of one."
    if not signatures:
        return f"There is no finding {str(name)!r}: the corpus holds none yet."
    return f"There is no finding {str(name)!r}: the corpus holds {listed}{more}."
