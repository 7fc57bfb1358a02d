"""What can be read from an open corpus, each call in a transaction of its own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import ColumnElement, Engine, distinct, func, select
from sqlalchemy.orm import QueryableAttribute, Session

from fuzzcompile.corpus.connection import explained_errors, integrity
from fuzzcompile.corpus.failures import UnknownFindingError
from fuzzcompile.corpus.location import describe
from fuzzcompile.corpus.models import (
    Base,
    CampaignRow,
    CaseRow,
    CoverageRow,
    EnvironmentRow,
    FindingRow,
    RelatedRow,
    ReplayRow,
    ReproducerRow,
    RunRow,
    UmbrellaRow,
)
from fuzzcompile.corpus.records import (
    CaseRecord,
    Counters,
    Finding,
    Related,
    Reproducer,
    Seed,
    StoredCampaign,
    StoredCoverage,
    StoredReplay,
    StreamRun,
    Umbrella,
    compiler_of,
    public_id,
)
from fuzzcompile.severity import rank

if TYPE_CHECKING:
    from fuzzcompile.contract import ReportJson

_FINDINGS_NAMED = 10
# The records whose fields are columns of one row, but for those that are given beside it.
Stored = TypeVar(
    "Stored", CaseRecord, Finding, Related, Reproducer, StoredCampaign, StoredCoverage, StoredReplay, Umbrella
)


class Reader:
    """The reading half of a `Store`. A finding is named by id (3, "3", "F3"), signature, or beginning of one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def location(self) -> str:
        """The path, or the URL without its password: what to show, and to give to ``--corpus``."""
        return describe(self._engine.url)

    def campaigns(self) -> list[StoredCampaign]:
        """Every campaign, oldest first."""
        query = (
            select(CampaignRow, EnvironmentRow.details)
            .join(EnvironmentRow, CampaignRow.environment_id == EnvironmentRow.id)
            .order_by(CampaignRow.id)
        )
        with self._read() as session:
            return [_of(StoredCampaign, row, environment=details) for row, details in session.execute(query)]

    def recorded_indices(self, stream: str) -> set[int]:
        """The places of a stream that were judged, by this campaign or an earlier one."""
        query = select(RunRow.stream_index).where(RunRow.stream == stream)
        with self._read() as session:
            return {index for index in session.scalars(query) if index is not None}

    def has_source(self, sha256: str, stream: str | None = None) -> bool:
        """Whether a case of that hash was judged, in ``stream`` or (None) in any."""
        query = select(RunRow.id).join(CaseRow, RunRow.case_id == CaseRow.id).where(CaseRow.sha256 == sha256)
        if stream is not None:
            query = query.where(RunRow.stream == stream)
        with self._read() as session:
            return session.scalar(query.limit(1)) is not None

    def case(self, sha256: str) -> CaseRecord | None:
        """The stored case of that hash, with its recipe but without its place; None where there is none."""
        with self._read() as session:
            row = session.scalar(select(CaseRow).where(CaseRow.sha256 == sha256))
            if row is None:
                return None
            tuples = {name: tuple(getattr(row, name)) for name in ("idioms", "near_misses", "features")}
            return _of(CaseRecord, row, stream=None, index=None, **tuples)

    def stream_runs(self, stream: str, compiler: str) -> list[StreamRun]:
        """The judged cases of a stream in its order, each once, and what each was the first to reach."""
        query = (
            select(RunRow.stream_index, RunRow, CaseRow.features)
            .join(CaseRow, RunRow.case_id == CaseRow.id)
            .where(RunRow.stream == stream, RunRow.stream_index.is_not(None))
            .order_by(RunRow.stream_index, RunRow.id)
        )
        opening = select(func.min(RunRow.id)).where(RunRow.is_bug).group_by(RunRow.finding_id)
        with self._read() as session:
            firsts, opened = _firsts(session, compiler), set(session.scalars(opening))
            runs: dict[int, StreamRun] = {}
            for index, run, features in session.execute(query):
                if index is None:  # for the type checker: the query leaves these out
                    continue
                new = firsts.get(run.case_id, 0)
                runs[index] = StreamRun(index, tuple(features), run.screened, new, run.id in opened)
            return list(runs.values())

    def seeds(self, compiler: str, profile: Mapping[str, object], *, limit: int = 64) -> list[Seed]:
        """Generated cases of that profile that were first to reach something; most first, then oldest first."""
        query = (
            select(CaseRow.id, CaseRow.sha256, CaseRow.choices, CaseRow.spec, RunRow.report)
            .join(RunRow, RunRow.case_id == CaseRow.id)
            .where(CaseRow.choices.is_not(None))
            .order_by(CaseRow.id, RunRow.id)
        )
        with self._read() as session:
            firsts = _firsts(session, compiler)
            seeds: dict[int, Seed] = {}
            for key, sha256, choices, spec, report in session.execute(query.where(CaseRow.id.in_(firsts))):
                if choices is not None and (spec or {}).get("profile") == profile:
                    step = cast("ReportJson", report).get("evidence", {}).get("float64_step")
                    seeds[key] = Seed(sha256, choices, firsts[key], step)
        return sorted(seeds.values(), key=lambda seed: -seed.firsts)[:limit]

    def coverage(self, compiler: str | None = None, *, until: datetime | None = None) -> list[StoredCoverage]:
        """What was reached, by every compiler or one (`compiler_of`): rewrites, decompositions, lowerings and kernels.

        With ``until``, only what was first reached by a case that campaigns had judged by then; a case that was judged
        more than once counts from its last run. The counts stay those of the whole corpus.
        """
        identity = (CoverageRow.stage, CoverageRow.pass_name, CoverageRow.rewrite, CoverageRow.outcome)
        query = select(CoverageRow, CaseRow.sha256).join(CaseRow, CoverageRow.first_case_id == CaseRow.id)
        if compiler is not None:
            query = query.where(CoverageRow.torch == compiler)
        if until is not None:
            judged = select(RunRow.case_id).where(RunRow.campaign_id.is_not(None)).group_by(RunRow.case_id)
            query = query.where(CoverageRow.first_case_id.in_(judged.having(func.max(RunRow.created) <= until)))
        with self._read() as session:
            rows = session.execute(query.order_by(CoverageRow.torch, *identity))
            return [_of(StoredCoverage, row, first_case_sha256=sha256) for row, sha256 in rows]

    def counters(
        self, stream: str | None = None, *, compiler: str | None = None, until: datetime | None = None
    ) -> Counters:
        """Counts over all runs, or those of one stream, by one compiler, or by campaigns until a moment."""
        chosen = [] if stream is None else [RunRow.stream == stream]
        if compiler is not None:
            chosen.append(RunRow.environment_id.in_(self._environments(compiler)))
        if until is not None:
            chosen += [RunRow.campaign_id.is_not(None), RunRow.created <= until]
        by_verdict = (
            select(RunRow.verdict, func.count()).where(*chosen).group_by(RunRow.verdict).order_by(RunRow.verdict)
        )
        with self._read() as session:
            verdicts = dict(session.execute(by_verdict).all())
            cases = _count_distinct(session, RunRow.case_id, chosen)
            findings = _count_distinct(session, RunRow.finding_id, chosen)
        return Counters(cases, sum(verdicts.values()), verdicts, findings)

    def findings(self, status: str | None = None, *, campaign_id: int | None = None) -> list[Finding]:
        """All findings, or those of a status or hit by a campaign; oldest first."""
        conditions = [] if status is None else [FindingRow.status == status]
        if campaign_id is not None:
            conditions.append(FindingRow.id.in_(select(RunRow.finding_id).where(RunRow.campaign_id == campaign_id)))
        with self._read() as session:
            return _findings(session, *conditions)

    def finding(self, name: str | int) -> Finding:
        """The finding called ``name``.

        Raises:
            UnknownFindingError: there is none, or more than one; the message lists what there is.
        """
        with self._read() as session:
            return _findings(session, FindingRow.id == finding_id(session, name))[0]

    def environment_of(self, finding: str | int) -> dict[str, object]:
        """The environment in which a finding's best run was made."""
        query = (
            select(EnvironmentRow.details)
            .join(RunRow, RunRow.environment_id == EnvironmentRow.id)
            .join(FindingRow, FindingRow.best_run_id == RunRow.id)
        )
        with self._read() as session:
            return dict(session.scalar(query.where(FindingRow.id == finding_id(session, finding))) or {})

    def best_reproducer(self, finding: str | int) -> Reproducer | None:
        """A confirmed one before others, then one of the worst severity, then the shortest."""
        with self._read() as session:
            key = finding_id(session, finding)
            rows = session.scalars(select(ReproducerRow).where(ReproducerRow.finding_id == key)).all()
            ranked = sorted(
                rows,
                key=lambda row: (
                    not row.confirmed,
                    rank(cast("ReportJson | None", row.report)),
                    row.lines,
                    row.id,
                ),
            )
            return _of(Reproducer, ranked[0]) if ranked else None

    def replays(self, finding: str | int | None = None) -> list[StoredReplay]:
        """The replays of one finding or (None) of all, oldest first."""
        query = select(ReplayRow).order_by(ReplayRow.id)
        with self._read() as session:
            if finding is not None:
                query = query.where(ReplayRow.finding_id == finding_id(session, finding))
            return [_of(StoredReplay, row, runs=tuple(row.runs)) for row in session.scalars(query)]

    def related(self, finding: str | int) -> list[Related]:
        """The public reports that a search found for a finding, the likeliest first."""
        with self._read() as session:
            key = finding_id(session, finding)
            query = select(RelatedRow).where(RelatedRow.finding_id == key).order_by(RelatedRow.score.desc())
            return [_of(Related, row) for row in session.scalars(query)]

    def umbrellas(self) -> list[Umbrella]:
        """The groups of which a person said something, by name."""
        with self._read() as session:
            return [_of(Umbrella, row) for row in session.scalars(select(UmbrellaRow).order_by(UmbrellaRow.name))]

    def _environments(self, compiler: str) -> list[int]:
        """The environments of one compiler."""
        with self._read() as session:
            rows = session.execute(select(EnvironmentRow.id, EnvironmentRow.details))
            return [key for key, details in rows if compiler_of(details) == compiler]

    def integrity(self) -> str:
        """``ok``, or what is wrong with the database."""
        return integrity(self._engine)

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with explained_errors(self._engine.url), Session(self._engine) as session:
            yield session


def finding_id(session: Session, name: str | int) -> int:
    """Resolve a signature, an id (3, "3", "F3") or the beginning of a signature, in that order.

    Raises:
        UnknownFindingError: there is no such finding, or more than one.
    """
    signatures = dict(session.execute(select(FindingRow.id, FindingRow.signature).order_by(FindingRow.id)).all())
    by_signature = {signature: key for key, signature in signatures.items()}
    if name in by_signature:
        return by_signature[str(name)]
    number = re.fullmatch(r"[fF]?(\d+)", str(name).strip())
    if number and int(number[1]) in signatures:
        return int(number[1])
    matches = [key for key, signature in signatures.items() if name and signature.startswith(str(name))]
    if len(matches) == 1:
        return matches[0]
    raise UnknownFindingError(_no_match(name, matches, signatures))


def _of(kind: type[Stored], row: Base, **given: object) -> Stored:
    """The record of a row: its fields are columns, except for those that are ``given``."""
    # Each record spells its columns' types once more; what mypy cannot compare, the tests of the corpus do.
    columns: dict[str, Any] = {name: getattr(row, name) for name in _names(kind) - given.keys()}
    return kind(**columns | given)


def _names(kind: type[Stored]) -> set[str]:
    return {field.name for field in fields(kind)}


def _findings(session: Session, *conditions: ColumnElement[bool]) -> list[Finding]:
    """The findings that fulfil all conditions, oldest first."""
    query = (
        select(FindingRow, RunRow.report, CaseRow.source, CaseRow.sha256)
        .join(RunRow, FindingRow.best_run_id == RunRow.id)
        .join(CaseRow, RunRow.case_id == CaseRow.id)
        .where(*conditions)
        .order_by(FindingRow.id)
    )
    seen = _environments_by_finding(session)
    return [
        _of(
            Finding,
            row,
            duplicate_of=None if row.duplicate_of_id is None else public_id(row.duplicate_of_id),
            torch_versions=tuple(dict.fromkeys(str(details["torch"]) for details in seen[row.id])),
            devices=tuple(dict.fromkeys(map(_compiled_for, seen[row.id]))),
            report=report,
            source=source,
            source_sha256=sha256,
        )
        for row, report, source, sha256 in session.execute(query)
    ]


def _firsts(session: Session, compiler: str) -> dict[int, int]:
    """How much each case was the first to reach with a compiler, by the case's id."""
    first = CoverageRow.first_case_id
    return dict(session.execute(select(first, func.count()).where(CoverageRow.torch == compiler).group_by(first)).all())


def _environments_by_finding(session: Session) -> dict[int, list[dict[str, object]]]:
    """The environments in which each finding was hit, in the order in which they did."""
    by_finding: dict[int, list[dict[str, object]]] = defaultdict(list)
    details = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
    rows = session.execute(
        select(RunRow.finding_id, RunRow.environment_id)
        .where(RunRow.finding_id.is_not(None))
        .group_by(RunRow.finding_id, RunRow.environment_id)
        .order_by(func.min(RunRow.id))
    )
    for key, environment in rows:
        if key is not None:  # for the type checker: the query leaves these out
            by_finding[key].append(details[environment])
    return by_finding


def _compiled_for(environment: Mapping[str, object]) -> str:
    """The target that the compiler was told, or the type of the device that ran."""
    return str(environment.get("target") or str(environment.get("device") or "unknown").partition(":")[0])


def _count_distinct(
    session: Session,
    column: QueryableAttribute[int] | QueryableAttribute[int | None],
    chosen: list[ColumnElement[bool]],
) -> int:
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
