"""All that is known of a case and of how it was judged: enough to judge it again, whatever came before it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.failures import UnknownFindingError
from fuzzcompile.corpus.models import CampaignRow, CaseRow, EnvironmentRow, RunRow
from fuzzcompile.corpus.records import public_id

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


_LEAST_DIGITS, _WHOLE = 6, 64


@dataclass(frozen=True)
class JudgedRun:
    """One time that a case was judged.

    Attributes:
        report: the report, as ``triage --json`` prints it.
        environment: where.
        conditions: the campaign's vetoes, hashes of plants, and own passes; None outside a campaign.
        screened: whether no code was generated.
        finding: the public id of the finding that it hit.
        place: the stream and the place there; None for a case beside a stream.
        created: when it was stored.
    """

    report: ReportJson
    environment: dict[str, object]
    conditions: dict[str, object] | None
    screened: bool
    finding: str | None
    place: tuple[str, int] | None
    created: datetime


@dataclass(frozen=True)
class JudgedCase:
    """A case and its runs, oldest first; its source is empty where `fuzzcompile.corpus.keeping` has dropped it."""

    sha256: str
    source: str
    imported: bool
    runs: tuple[JudgedRun, ...]


def judged_case(session: Session, name: str) -> JudgedCase:
    """The case whose hash begins with ``name``; ``case_`` before it, as reports call cases, is left out.

    Raises:
        UnknownFindingError: there is none, or more than one.
    """
    digits = name.removeprefix("case_").lower()
    if len(digits) < _LEAST_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise UnknownFindingError(f"{name} is no case: name it by {_LEAST_DIGITS} or more digits of its hash.")
    # A range, which the index on the hash answers; the letter g comes after every digit.
    begins = (CaseRow.sha256 >= digits, CaseRow.sha256 < f"{digits}g")
    rows = session.scalars(select(CaseRow).where(*begins).limit(2)).all()
    if len(rows) != 1:
        raise UnknownFindingError(
            f"{'More than one case has' if rows else 'No case has'} a hash that begins with {digits}: "
            + ("give more digits." if rows else "`fuzzcompile run --log FILE` and reports name cases.")
        )
    runs = (
        select(RunRow, EnvironmentRow.details, CampaignRow.settings)
        .join(EnvironmentRow, RunRow.environment_id == EnvironmentRow.id)
        .outerjoin(CampaignRow, RunRow.campaign_id == CampaignRow.id)
        .where(RunRow.case_id == rows[0].id)
        .order_by(RunRow.id)
    )
    judged = tuple(_run(run, environment, settings) for run, environment, settings in session.execute(runs))
    return JudgedCase(rows[0].sha256, rows[0].source, rows[0].imported, judged)


def _run(run: RunRow, environment: dict[str, object], settings: dict[str, object] | None) -> JudgedRun:
    conditions = None if settings is None else {name: settings.get(name) for name in ("vetoes", "plants", "custom")}
    return JudgedRun(
        cast("ReportJson", run.report),
        environment,
        conditions,
        run.screened,
        None if run.finding_id is None else public_id(run.finding_id),
        None if run.stream is None or run.stream_index is None else (run.stream, run.stream_index),
        run.created,
    )
