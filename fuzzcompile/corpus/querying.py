"""What is asked inside a session: names of findings resolved, rows made into records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, and_, distinct, func, select
from sqlalchemy.orm import QueryableAttribute, Session

from fuzzcompile.corpus.failures import UnknownFindingError
from fuzzcompile.corpus.forms import drawn_from
from fuzzcompile.corpus.machines import Hits, changed_campaigns, machines_by_finding
from fuzzcompile.corpus.models import (
    Base,
    CaseRow,
    CoverageRow,
    EnvironmentRow,
    FindingRow,
    FormerNameRow,
    ReproducerRow,
    RunRow,
)
from fuzzcompile.corpus.records import (
    CaseRecord,
    Finding,
    FindingSummary,
    Related,
    Replay,
    Reproducer,
    StoredCampaign,
    StoredCoverage,
    StoredReplay,
    Umbrella,
    public_id,
)
from fuzzcompile.corpus.trusting import is_claim, is_trusted

_FINDINGS_NAMED = 10
# With more findings than this, a list of their ids is slower than reading of all.
_MOST_NAMED = 500
# The records whose fields are columns of one row, but for those that are given beside it.
Stored = TypeVar(
    "Stored", CaseRecord, Finding, FindingSummary, Related, Replay, Reproducer, StoredCampaign, StoredCoverage,
    StoredReplay, Umbrella,
)  # fmt: skip


def finding_id(session: Session, name: str | int) -> int:
    """Resolve a signature, an id (3, "3", "F3"), a former one of either, or the beginning of a signature.

    Raises:
        UnknownFindingError: there is no such finding, or more than one.
    """
    text = str(name)
    number = re.fullmatch(r"[fF]?(\d{1,18})", text.strip())
    wanted = int(number[1]) if number else None
    former = (FormerNameRow.merged_id == wanted) if wanted is not None else (FormerNameRow.signature == text)
    for query in (
        select(FindingRow.id).where(FindingRow.signature == text) if isinstance(name, str) else None,
        select(FindingRow.id).where(FindingRow.id == wanted) if wanted is not None else None,
        select(FormerNameRow.finding_id).where(former).distinct(),
        select(FindingRow.id).where(starts_with(text)) if text else None,
    ):
        matches = [] if query is None else list(session.scalars(query.limit(2)))
        if len(matches) == 1:
            return matches[0]
    signatures = dict(session.execute(select(FindingRow.id, FindingRow.signature).order_by(FindingRow.id)).all())
    matches = [key for key, signature in signatures.items() if text and signature.startswith(text)]
    raise UnknownFindingError(_no_match(name, matches, signatures))


def starts_with(text: str) -> ColumnElement[bool]:
    """Whether a finding's signature begins with the text, in this case of letters, whatever the database."""
    # The index finds the few signatures in question: both databases compare code points there.
    return and_(FindingRow.signature >= text, FindingRow.signature < f"{text}\U0010ffff")


def shown_reproducer(session: Session, finding: FindingRow) -> ReproducerRow | None:
    """The reproducer whose report the finding shows, if it does not show that of a run."""
    return session.get_one(ReproducerRow, finding.best_reproducer_id) if finding.speaks_by_reproducer else None


def details_of(session: Session, environment_id: int | None) -> dict[str, object] | None:
    """A stored environment."""
    row = None if environment_id is None else session.get(EnvironmentRow, environment_id)
    return None if row is None else dict(row.details)


def record_of(kind: type[Stored], row: object, **given: object) -> Stored:
    """The record of a row: its fields are columns, except for those that are ``given``."""
    # Each record spells its columns' types once more; what mypy cannot compare, the tests of the corpus do.
    columns: dict[str, Any] = {name: getattr(row, name) for name in _names(kind) - given.keys()}
    return kind(**columns | given)


def _names(kind: type[Stored]) -> set[str]:
    return {field.name for field in fields(kind)}


def conditions_of(status: str | None, campaign_id: int | None) -> list[ColumnElement[bool]]:
    """What findings of a status, hit by a campaign, fulfil."""
    conditions = [] if status is None else [FindingRow.status == status]
    if campaign_id is not None:
        conditions.append(FindingRow.id.in_(select(RunRow.finding_id).where(RunRow.campaign_id == campaign_id)))
    return conditions


# What a person reads of a finding besides its own columns, and by which joins.
_BEST = (ReproducerRow, FindingRow.best_reproducer_id == ReproducerRow.id)


def summary_records(session: Session, *conditions: ColumnElement[bool]) -> list[FindingSummary]:
    """The findings that fulfil all conditions, without reports and sources, oldest first."""
    columns = [getattr(FindingRow, name) for name in _names_of_columns(FindingRow) if name != "evidence"]
    query = (
        select(
            *columns,
            ReproducerRow.lines,
            ReproducerRow.confirmed,
            CaseRow.imported.label("case_imported"),
            ReproducerRow.imported.label("reproducer_imported"),
        )
        .outerjoin(*_BEST)
        .outerjoin(CaseRow, FindingRow.case_id == CaseRow.id)
        .where(*conditions)
        .order_by(FindingRow.id)
    )
    rows = session.execute(query).all()
    wanted = [row.id for row in rows] if conditions else None
    seen, (drawn, hits) = _environments_by_finding(session, wanted), _hits_by_finding(session, wanted)
    machines = machines_by_finding(session, conditions, hits)
    return [
        record_of(
            FindingSummary,
            row,
            **_beside(row.duplicate_of_id, seen[row.id], drawn[row.id], row.lines, row.confirmed),
            machines=machines[row.id],
            trusted=is_trusted(row.case_imported, row.reproducer_imported),
        )
        for row in rows
    ]


def _names_of_columns(kind: type[Base]) -> list[str]:
    return [column.key for column in kind.__table__.columns]


def finding_records(session: Session, *conditions: ColumnElement[bool]) -> list[Finding]:
    """The findings that fulfil all conditions, oldest first."""
    query = (
        select(FindingRow, RunRow.report, CaseRow, ReproducerRow)
        .join(RunRow, FindingRow.best_run_id == RunRow.id)
        .outerjoin(CaseRow, FindingRow.case_id == CaseRow.id)
        .outerjoin(*_BEST)
        .where(*conditions)
        .order_by(FindingRow.id)
    )
    rows = session.execute(query).all()
    wanted = [row.id for row, *_ in rows] if conditions else None
    seen, (drawn, hits) = _environments_by_finding(session, wanted), _hits_by_finding(session, wanted)
    machines = machines_by_finding(session, conditions, hits)
    found = []
    for row, of_run, case, best in rows:
        report = (best.report if row.speaks_by_reproducer else of_run) or {}
        of_best = (None, None) if best is None else (best.lines, best.confirmed)
        beside = _beside(row.duplicate_of_id, seen[row.id], drawn[row.id], *of_best)
        beside["machines"] = machines[row.id]
        beside["trusted"] = is_trusted(case is not None and case.imported, best is not None and best.imported)
        program = case or best
        source = {
            "source": program.source,
            "source_sha256": program.sha256,
            "features": tuple(case.features) if case else (),
        }
        found.append(record_of(Finding, row, **beside, **source, report=report, culprit=report.get("culprit")))
    return found


def _beside(
    duplicate_of_id: int | None,
    environments: list[dict[str, object]],
    features: list[list[str]],
    lines: int | None,
    confirmed: bool | None,
) -> dict[str, object]:
    """What a record of a finding says besides its columns."""
    return {
        "duplicate_of": None if duplicate_of_id is None else public_id(duplicate_of_id),
        "torch_versions": tuple(dict.fromkeys(str(details["torch"]) for details in environments)),
        "devices": tuple(dict.fromkeys(map(_compiled_for, environments))),
        "reproducer_lines": lines,
        "confirmed": confirmed,
        "drawn_from": drawn_from(features),
    }


def reproducer_record(session: Session, row: ReproducerRow) -> Reproducer:
    """The record of a reproducer, with what its case and its environment are."""
    case = None if row.case_id is None else session.get_one(CaseRow, row.case_id).sha256
    return record_of(Reproducer, row, case_sha256=case, environment=details_of(session, row.environment_id))


def environment_of_runs(session: Session, row: FindingRow, shown: ReproducerRow | None) -> dict[str, object]:
    """The environment of the finding's runs that fits best what it shows."""
    if shown is None:
        run = session.get_one(RunRow, row.best_run_id)
        return details_of(session, run.environment_id) or {}
    seen = [
        details for details in _environments_by_finding(session, [row.id])[row.id] if details["torch"] == shown.torch
    ]
    device = (shown.report or {}).get("device")
    return next((dict(details) for details in seen), {"torch": shown.torch, "device": device})


def first_reached(session: Session, compiler: str) -> dict[int, int]:
    """How much each case was the first to reach with a compiler, by the case's id."""
    first = CoverageRow.first_case_id
    return dict(session.execute(select(first, func.count()).where(CoverageRow.torch == compiler).group_by(first)).all())


def _environments_by_finding(
    session: Session, wanted: Sequence[int] | None = None
) -> dict[int, list[dict[str, object]]]:
    """The environments in which each finding, or each of those wanted, was hit, in the order in which they did."""
    by_finding: dict[int, list[dict[str, object]]] = defaultdict(list)
    details = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
    every = wanted is None or len(wanted) > _MOST_NAMED
    chosen = RunRow.finding_id.is_not(None) if every else RunRow.finding_id.in_(wanted or ())
    rows = session.execute(
        select(RunRow.finding_id, RunRow.environment_id)
        .where(chosen)
        .group_by(RunRow.finding_id, RunRow.environment_id)
        .order_by(func.min(RunRow.id))
    )
    for key, environment in rows:
        if key is not None:  # for the type checker: the query leaves these out
            by_finding[key].append(details[environment])
    return by_finding


def _hits_by_finding(
    session: Session, wanted: Sequence[int] | None = None
) -> tuple[dict[int, list[list[str]]], dict[int, Hits]]:
    """Of each finding, or of each of those wanted: the features of the cases that showed it, and where that counts."""
    drawn: dict[int, list[list[str]]] = defaultdict(list)
    hits: dict[int, Hits] = defaultdict(Hits)
    changed = changed_campaigns(session)
    every = wanted is None or len(wanted) > _MOST_NAMED
    chosen = RunRow.finding_id.is_not(None) if every else RunRow.finding_id.in_(wanted or ())
    of_run = (RunRow.finding_id, RunRow.id, RunRow.environment_id, RunRow.campaign_id, RunRow.token)
    query = select(*of_run, CaseRow.features, CaseRow.imported).join(CaseRow, RunRow.case_id == CaseRow.id)
    for key, run, environment, campaign, token, features, imported in session.execute(query.where(chosen)):
        if key is None:  # for the type checker: the query leaves these out
            continue
        drawn[key].append(features)
        if campaign not in changed:
            found = hits[key].claimed if imported or is_claim(token) else hits[key].own
            found[environment] = min(run, found.get(environment, run))
    return drawn, hits


def _compiled_for(environment: Mapping[str, object]) -> str:
    """The target that the compiler was told, or the type of the device that ran."""
    return str(environment.get("target") or str(environment.get("device") or "unknown").partition(":")[0])


def count_distinct(
    session: Session,
    column: QueryableAttribute[int] | QueryableAttribute[int | None],
    chosen: list[ColumnElement[bool]],
) -> int:
    """How many values a column has in the chosen runs."""
    return session.scalar(select(func.count(distinct(column))).where(*chosen)) or 0


def _no_match(name: str | int, matches: list[int], signatures: dict[int, str]) -> str:
    named = matches or list(signatures)
    listed = ", ".join(f"{public_id(key)} ({signatures[key]})" for key in named[:_FINDINGS_NAMED])
    more = f" and {len(named) - _FINDINGS_NAMED} more" if len(named) > _FINDINGS_NAMED else ""
    if matches:
        return f"{str(name)!r} could be {listed}{more}: give the id of one."
    if not signatures:
        return f"There is no finding {str(name)!r}: the corpus holds none yet."
    return f"There is no finding {str(name)!r}: the corpus holds {listed}{more}."
