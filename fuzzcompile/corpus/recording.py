"""What one transaction writes. Every function here runs inside the caller's session.

Rows are looked up before they are inserted; the write lock, held since the transaction began,
keeps another process from inserting the same in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from fuzzcompile.corpus import merging
from fuzzcompile.corpus.matching import finding_of, keep_name
from fuzzcompile.corpus.models import (
    CaseRow,
    CoverageRow,
    EnvironmentRow,
    FindingRow,
    RelatedRow,
    ReplayRow,
    ReproducerRow,
    RunRow,
)
from fuzzcompile.corpus.records import CaseRecord, Coverage, Kept, Recorded, Related, Replay, Reproducer, compiler_of
from fuzzcompile.corpus.trusting import claim

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


ENVIRONMENT_COLUMNS = ("torch", "device", "driver", "compiler", "cpu")


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def plain(value: Mapping[str, object]) -> dict[str, object]:
    """A copy made of JSON's own types.

    Raises:
        ValueError: it holds a NaN or an infinity, which JSON does not have.
    """
    return cast("dict[str, object]", json.loads(json.dumps(dict(value), allow_nan=False)))


def check_report(report: ReportJson) -> None:
    """Raise ValueError for a report that cannot be stored."""
    if not isinstance(report.get("verdict"), str):
        raise ValueError("a report needs a verdict")
    if report.get("is_bug") and not report.get("signature"):
        raise ValueError("a bug needs a signature: supply one, of the error or of the stage")


def put_environment(session: Session, environment: Mapping[str, object]) -> int:
    """Return the row of an environment, which is the same for the same content."""
    details = plain(environment)
    if not details.get("torch"):
        raise ValueError("an environment must name its torch")
    sha256 = hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()
    row = session.scalar(select(EnvironmentRow).where(EnvironmentRow.sha256 == sha256))
    if row is None:
        row = EnvironmentRow(sha256=sha256, details=details)
        for name in ENVIRONMENT_COLUMNS:
            setattr(row, name, _as_text(details.get(name)))
        session.add(row)
        session.flush()
    return row.id


def put_case(session: Session, case: CaseRecord, *, imported: bool = False) -> CaseRow:
    """Return the row of a source, completed where an earlier record of it knew less.

    An ``imported`` one that is not here yet is marked; what is judged here is trusted.
    """
    row = session.scalar(select(CaseRow).where(CaseRow.sha256 == case.sha256))
    if row is None:
        row = CaseRow(
            sha256=case.sha256,
            source=case.source,
            origin=case.origin,
            idioms=list(case.idioms),
            near_misses=list(case.near_misses),
            features=list(case.features),
            imported=imported,
            created=now(),
        )
        session.add(row)
    if row.spec is None and case.spec is not None:
        row.spec = plain(case.spec)
    if row.choices is None:
        row.choices = case.choices
    row.imported = row.imported and imported
    row.source = row.source or case.source  # it had been dropped (`fuzzcompile.corpus.keeping`)
    session.flush()
    return row


def put_run(
    session: Session,
    campaign_id: int | None,
    case: CaseRecord,
    environment: Mapping[str, object],
    report: ReportJson,
    coverage: Sequence[Coverage],
    *,
    screened: bool = False,
    created: datetime | None = None,
    signature: str | None = None,
    token: str | None = None,
    imported: bool = False,
) -> Recorded:
    """Store a judged case: its source, environment, run, finding and coverage.

    A run that comes from another corpus was ``created`` there, and hit a finding of that ``signature``; with
    ``imported``, its case is not trusted. One whose ``token`` is there already is not stored again.

    Raises:
        ValueError: a bug has no signature, the environment no torch, or a number is NaN or infinite.
    """
    check_report(report)
    known = None if token is None else session.scalar(select(RunRow).where(RunRow.token == token))
    if known is not None:
        return Recorded(known.case_id, known.id, known.finding_id, is_new_finding=_began_its_finding(session, known))
    case_row = put_case(session, case, imported=imported)
    cost = report.get("cost") or {}
    run = RunRow(
        token=claim() if imported and not case_row.imported else token,
        case_id=case_row.id,
        environment_id=put_environment(session, environment),
        campaign_id=campaign_id,
        stream=case.stream,
        stream_index=case.index,
        verdict=report["verdict"],
        is_bug=bool(report.get("is_bug")),
        screened=screened,
        seconds=cost.get("seconds"),
        compiles=cost.get("compiles"),
        report=plain(report),
        created=created or now(),
    )
    session.add(run)
    session.flush()
    is_new = run.is_bug and _count_finding(session, run, signature or str(report["signature"]), case_row.source)
    _count_coverage(session, compiler_of(environment), case_row.id, coverage)
    return Recorded(case_row.id, run.id, run.finding_id, is_new)


def _began_its_finding(session: Session, run: RunRow) -> bool:
    """Whether a stored run was the first to hit its finding."""
    earlier = select(RunRow.id).where(RunRow.finding_id == run.finding_id, RunRow.id < run.id).limit(1)
    return run.finding_id is not None and session.scalar(earlier) is None


def put_reproducer(
    session: Session,
    finding_id: int,
    reproducer: Reproducer,
    replaces: str | None = None,
    *,
    imported: bool = False,
) -> Kept:
    """Store a reproducer; a script that is already stored is updated. The finding takes from it what it shows.

    ``replaces`` is the hash of the finding's script or case that was judged anew to make this one. An ``imported`` one
    is marked, and changes nothing of one that is trusted.
    """
    finding = session.get_one(FindingRow, finding_id)
    row = _reproducer(session, finding_id, reproducer.sha256)
    if imported and row is not None and not row.imported:
        return Kept(finding.id, finding.signature)
    if row is None and replaces is not None:
        row = _reproducer(session, finding_id, replaces)
    if row is None:
        row = ReproducerRow(finding_id=finding_id, created=now())
        session.add(row)
    row.imported = imported
    for name in ("source", "sha256", "lines", "kind", "confirmed", "torch", "neighbour", "program"):
        setattr(row, name, getattr(reproducer, name))
    row.report = None if reproducer.report is None else plain(reproducer.report)
    row.shown = None if reproducer.shown is None else plain(reproducer.shown)
    if reproducer.case_sha256 is not None:
        row.case_id = session.scalar(select(CaseRow.id).where(CaseRow.sha256 == reproducer.case_sha256))
    if reproducer.environment is not None:
        row.environment_id = put_environment(session, reproducer.environment)
    session.flush()
    is_new, anew = False, replaces is not None
    if merging.belongs_apart(session, finding, row) and not anew:
        finding, is_new = merging.move_apart(session, finding, row)
    finding, merged = merging.settle(session, finding, row, anew=anew)
    merging.choose(session, finding)
    return Kept(finding.id, finding.signature, merged, is_new)


def _reproducer(session: Session, finding_id: int, sha256: str) -> ReproducerRow | None:
    of_script = (ReproducerRow.finding_id == finding_id, ReproducerRow.sha256 == sha256)
    return session.scalar(select(ReproducerRow).where(*of_script))


def put_replay(session: Session, finding_id: int, replay: Replay, created: datetime) -> None:
    """Store that a reproducer was run again, unless that is stored."""
    same = (ReplayRow.finding_id == finding_id, ReplayRow.created == created, ReplayRow.torch == replay.torch)
    if session.scalar(select(ReplayRow.id).where(*same)) is None:
        session.add(ReplayRow(finding_id=finding_id, created=created, **{**vars(replay), "runs": list(replay.runs)}))


def put_related(session: Session, finding_id: int, related: Sequence[Related], queries: Sequence[str]) -> None:
    """Store what a search found, in place of what an earlier one did."""
    session.execute(delete(RelatedRow).where(RelatedRow.finding_id == finding_id))
    session.add_all(RelatedRow(finding_id=finding_id, **vars(found)) for found in related)
    session.execute(update(FindingRow).where(FindingRow.id == finding_id).values(searched=now(), queries=list(queries)))


def _count_finding(session: Session, run: RunRow, signature: str, source: str) -> bool:
    """Count the run as a hit of its finding; whether the finding is new."""
    row = finding_of(session, signature, cast("ReportJson", run.report))
    is_new = row is None
    if row is None:
        row = merging.new_finding(session, signature, run)
    else:
        keep_name(session, row, signature)
    row.hits += 1
    row.first_seen, row.last_seen = min(row.first_seen, run.created), max(row.last_seen, run.created)
    run.finding_id = row.id
    if merging.take_if_better(session, row, run, source):
        merging.choose(session, row)
    return is_new


def _count_coverage(session: Session, compiler: str, case_id: int, coverage: Sequence[Coverage]) -> None:
    if not coverage:
        return
    wanted = CoverageRow.rewrite.in_({item.rewrite for item in coverage})
    rows = session.scalars(select(CoverageRow).where(CoverageRow.torch == compiler, wanted))
    known = {(row.stage, row.pass_name, row.rewrite, row.outcome): row for row in rows}
    for item in coverage:
        identity = (item.stage, item.pass_name, item.rewrite, str(item.outcome))
        row = known.get(identity)
        if row is None:
            named = dict(zip(("stage", "pass_name", "rewrite", "outcome"), identity, strict=True))
            row = known[identity] = CoverageRow(**named, torch=compiler, count=0, first_case_id=case_id)
            session.add(row)
        row.count += item.count


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
