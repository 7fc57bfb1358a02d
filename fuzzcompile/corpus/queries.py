"""Queries inside a session: names of findings resolved, rows made into records."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.machines import machines_by_finding, seen_by_finding
from fuzzcompile.corpus.models import (
    CaseRow,
    EnvironmentRow,
    FindingRow,
    FormerNameRow,
    Related,
    Replay,
    ReproducerRow,
    RunRow,
    Umbrella,
)
from fuzzcompile.corpus.records import Finding, FindingSummary, Reproducer, public_id
from fuzzcompile.model.errors import UsageError

# What findings were drawn from: the generator's general parts, or a form that a public report spelled.

GENERAL = "general parts"
# Features of generated cases that follow a public report of pytorch/pytorch, by that report. Those of detours and of a
# cache left the generator with the operator programs, and stand here for corpora from before.
REPORTS = {
    "softmax_axis": "#196468",
    "key_permuted": "#195320",
    "tensor_scale": "#191203",
    "counted": "#189518",
    "shifted_in_place": "#197829",
    "cache_moved_in_place": "#197829",
    "same_written": "#195422",
    "refused": "#169779, #178480, #193757, #195579, #197554",
}


def drawn_from(cases: Iterable[Collection[str]]) -> str | None:
    """Return the sources of a finding's cases, by the features of each case that showed it.

    Returns:
        `GENERAL` if one of the cases has no form of a report, ``the form of #N`` if each has, and None if no case's
        features are known: a user wrote it, or a corpus does not say.
    """
    known = [features for features in cases if features]
    if not known:
        return None
    forms = [[name for name in REPORTS if name in features] for features in known]
    return f"the form of {REPORTS[forms[0][0]]}" if all(forms) else GENERAL


_FINDINGS_NAMED = 10
Stored = TypeVar("Stored")


def finding_id(session: Session, name: str | int) -> int:
    """Resolve a signature, an id (3, "3", "F3"), a former one of either, or the beginning of a signature."""
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
    raise UsageError(_no_match(name, matches, signatures))


def starts_with(text: str) -> ColumnElement[bool]:
    """Return whether a finding's signature begins with the text, in this case of letters, whatever the database."""
    # The index finds the few signatures in question: both databases compare code points there.
    return and_(FindingRow.signature >= text, FindingRow.signature < f"{text}\U0010ffff")


def make_record(kind: type[Stored], row: object, **given: object) -> Stored:
    """The record of a row: its fields are columns, except for those that are ``given``."""
    # Each record spells its columns' types once more; what mypy cannot compare, the tests of the corpus do.
    columns = {field.name: getattr(row, field.name) for field in fields(cast(Any, kind)) if field.name not in given}
    return kind(**columns | given)


def list_conditions(status: str | None, campaign_id: int | None) -> list[ColumnElement[bool]]:
    """What findings of a status, hit by a campaign, fulfil."""
    conditions = [] if status is None else [FindingRow.status == status]
    if campaign_id is not None:
        conditions.append(FindingRow.id.in_(select(RunRow.finding_id).where(RunRow.campaign_id == campaign_id)))
    return conditions


# The join with a finding's best reproducer.
BEST = (ReproducerRow, FindingRow.best_reproducer_id == ReproducerRow.id)


def summary_records(session: Session, *conditions: ColumnElement[bool]) -> list[FindingSummary]:
    """The findings that fulfil all conditions, without reports and sources, oldest first."""
    query = (
        select(
            *(column for column in FindingRow.__table__.columns if column.key != "evidence"),
            ReproducerRow.lines,
            ReproducerRow.confirmed,
            CaseRow.imported.label("case_imported"),
            ReproducerRow.imported.label("reproducer_imported"),
        )
        .outerjoin(*BEST)
        .outerjoin(CaseRow, FindingRow.case_id == CaseRow.id)
        .where(*conditions)
        .order_by(FindingRow.id)
    )
    rows = session.execute(query).all()
    details = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
    seen = seen_by_finding(session, [row.id for row in rows] if conditions else None)
    machines = machines_by_finding(session, conditions, seen, details)
    found = []
    for row in rows:
        environments = [details[key] for key in seen[row.id].environments]
        found.append(
            make_record(
                FindingSummary,
                row,
                duplicate_of=None if row.duplicate_of_id is None else public_id(row.duplicate_of_id),
                torch_versions=tuple(dict.fromkeys(str(each["torch"]) for each in environments)),
                # The target that the compiler was told, or the type of the device that ran.
                devices=tuple(dict.fromkeys(_compiled_for(each) for each in environments)),
                reproducer_lines=row.lines,
                drawn_from=drawn_from(seen[row.id].features),
                machines=machines[row.id],
                # Of the marks of its case and of its best reproducer, None for one it lacks.
                trusted=not (row.case_imported or row.reproducer_imported),
            )
        )
    return found


def finding_records(session: Session, *conditions: ColumnElement[bool]) -> list[Finding]:
    """The findings that fulfil all conditions, oldest first."""
    query = (
        select(FindingRow.speaks_by_reproducer, FindingRow.evidence, RunRow.report, CaseRow, ReproducerRow)
        .join(RunRow, FindingRow.best_run_id == RunRow.id)
        .outerjoin(CaseRow, FindingRow.case_id == CaseRow.id)
        .outerjoin(*BEST)
        .where(*conditions)
        .order_by(FindingRow.id)
    )
    found = []
    summaries = summary_records(session, *conditions)
    for summary, row in zip(summaries, session.execute(query), strict=True):
        speaks, evidence, of_run, case, best = row
        report, program = (best.report if speaks else of_run) or {}, case or best
        whole: dict[str, Any] = {
            "evidence": evidence,
            "report": report,
            "culprit": report.get("culprit"),
            "source": program.source,
            "source_sha256": program.sha256,
            "features": tuple(case.features) if case else (),
        }
        found.append(Finding(**vars(summary) | whole))
    return found


def reproducer_record(session: Session, row: ReproducerRow) -> Reproducer:
    """The record of a reproducer, with what its case and its environment are."""
    case = None if row.case_id is None else session.get_one(CaseRow, row.case_id).sha256
    environment = None if row.environment_id is None else session.get_one(EnvironmentRow, row.environment_id).details
    return make_record(Reproducer, row, case_sha256=case, environment=environment)


def list_names(session: Session, row: FindingRow) -> list[str]:
    """The signatures of a finding: its own, then those that it had, and those of findings merged into it."""
    former = select(FormerNameRow.signature).where(FormerNameRow.finding_id == row.id).order_by(FormerNameRow.id)
    return list(dict.fromkeys([row.signature, *session.scalars(former)]))


def find_umbrella(session: Session, name: str | None) -> Umbrella | None:
    """The group of that name, and what a person said of it; None for no name."""
    return None if name is None else session.get(Umbrella, name) or Umbrella(name)


_TOLD = ("signature", "status", "issue", "note", "umbrella", "severity", "verdict", "confidence", "hits", "queries")


def describe_finding(session: Session, row: FindingRow) -> dict[str, Any]:
    """What ``finding.json`` says of a finding besides its reports and its programs, in JSON's own types."""
    related = select(Related).where(Related.finding_id == row.id).order_by(Related.score.desc())
    replays = session.scalars(select(Replay).where(Replay.finding_id == row.id).order_by(Replay.id))
    group = find_umbrella(session, row.umbrella)
    original = None if row.duplicate_of_id is None else session.get_one(FindingRow, row.duplicate_of_id)
    return {
        "names": list_names(session, row),
        **{name: getattr(row, name) for name in _TOLD},
        "umbrella_mark": group and group.to_dict(),
        "duplicate_of": original and original.signature,
        "first_seen": row.first_seen.isoformat(),
        "last_seen": row.last_seen.isoformat(),
        "searched": row.searched and row.searched.isoformat(),
        "related": [link.to_json() for link in session.scalars(related)],
        "replays": [{**each.to_dict("id", "finding_id"), "created": each.created.isoformat()} for each in replays],
    }


def _compiled_for(environment: Mapping[str, object]) -> str:
    return str(environment.get("target") or str(environment.get("device") or "unknown").partition(":")[0])


def _no_match(name: str | int, matches: list[int], signatures: dict[int, str]) -> str:
    named = matches or list(signatures)
    listed = ", ".join(f"{public_id(key)} ({signatures[key]})" for key in named[:_FINDINGS_NAMED])
    more = f" and {len(named) - _FINDINGS_NAMED} more" if len(named) > _FINDINGS_NAMED else ""
    if matches:
        return f"{str(name)!r} could be {listed}{more}: give the id of one."
    if not signatures:
        return f"There is no finding {str(name)!r}: the corpus holds none yet."
    return f"There is no finding {str(name)!r}: the corpus holds {listed}{more}."
