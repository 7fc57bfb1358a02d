"""Reads from an open corpus, each call in a transaction of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus import maintenance, transactions
from fuzzcompile.corpus.connection import Transacting, integrity, reads
from fuzzcompile.corpus.fleet import Fleet, fleet
from fuzzcompile.corpus.maintenance import Stats
from fuzzcompile.corpus.merge import find_finding
from fuzzcompile.corpus.models import (
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
from fuzzcompile.corpus.queries import (
    News,
    Overview,
    Since,
    collect_details,
    count_distinct,
    describe_finding,
    environment_of_runs,
    find_umbrella_mark,
    finding_id,
    finding_records,
    first_reached,
    list_conditions,
    list_names,
    make_record,
    news,
    overview,
    reproducer_record,
    shown_reproducer,
    summary_records,
)
from fuzzcompile.corpus.records import (
    CaseRecord,
    Counters,
    Finding,
    FindingSummary,
    Related,
    Reproducer,
    Seed,
    StoredCampaign,
    StoredCoverage,
    StoredReplay,
    StreamRun,
    Umbrella,
    UnknownFindingError,
    identify_compiler,
    public_id,
)
from fuzzcompile.corpus.transactions import present

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


# All that is known of a case and of how it was judged: enough to judge it again, whatever came before it.

_LEAST_DIGITS, _WHOLE = 6, 64


@dataclass(frozen=True)
class JudgedRun:
    """One time that a case was judged: the report, and where.

    ``conditions`` are the campaign's vetoes, hashes of plants, and own passes, ``place`` the stream and the place
    there; None for a case that no campaign or no stream had. ``finding`` is the public id of the one that it hit.
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
    """A case and its runs, oldest first; its source is empty where `fuzzcompile.corpus.maintenance` has dropped it."""

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


class Reader(Transacting):
    """The reading half of a `Store`. A finding is named by id (3, "3", "F3"), signature, or beginning of one."""

    @reads
    def campaigns(self, session: Session) -> list[StoredCampaign]:
        """Every campaign, oldest first."""
        query = (
            select(CampaignRow, EnvironmentRow.details)
            .join(EnvironmentRow, CampaignRow.environment_id == EnvironmentRow.id)
            .order_by(CampaignRow.id)
        )
        return [
            make_record(StoredCampaign, row, environment=details, settings=transactions.asked(row.settings))
            for row, details in session.execute(query)
        ]

    @reads
    def part(self, session: Session, campaign_id: int) -> int:
        """The part of its stream that a campaign judges (`fuzzcompile.corpus.transactions`)."""
        return session.scalar(select(CampaignRow.part).where(CampaignRow.id == campaign_id)) or 0

    @reads
    def living(self, session: Session) -> set[int]:
        """The ids of the campaigns that run, as far as the corpus can tell, but for this process's."""
        return {row.id for row in transactions.living(session, transactions.present(session))}

    @reads
    def news(self, session: Session, compiler: str, since: Since | None) -> News:
        """Return the records stored since (`fuzzcompile.corpus.queries`)."""
        return news(session, compiler, since)

    @reads
    def recorded_indices(self, session: Session, stream: str) -> set[int]:
        """The places of a stream that were judged, by this campaign or an earlier one."""
        query = select(RunRow.stream_index).where(RunRow.stream == stream)
        return {index for index in session.scalars(query) if index is not None}

    @reads
    def has_source(self, session: Session, sha256: str, stream: str | None = None) -> bool:
        """Return whether a case of that hash was judged, in ``stream`` or (None) in any."""
        query = select(RunRow.id).join(CaseRow, RunRow.case_id == CaseRow.id).where(CaseRow.sha256 == sha256)
        if stream is not None:
            query = query.where(RunRow.stream == stream)
        return session.scalar(query.limit(1)) is not None

    @reads
    def case(self, session: Session, sha256: str) -> CaseRecord | None:
        """The stored case of that hash, with its recipe but without its place; None where there is none."""
        row = session.scalar(select(CaseRow).where(CaseRow.sha256 == sha256))
        if row is None:
            return None
        tuples = {name: tuple(getattr(row, name)) for name in ("idioms", "near_misses", "features")}
        return make_record(CaseRecord, row, stream=None, index=None, **tuples)

    @reads
    def judged(self, session: Session, name: str) -> JudgedCase:
        """The case whose hash begins with ``name``, and every time that it was judged.

        Raises:
            UnknownFindingError: there is none, or more than one.
        """
        return judged_case(session, name)

    @reads
    def stream_runs(self, session: Session, stream: str, compiler: str, latest: int | None = None) -> list[StreamRun]:
        """The judged cases of a stream in its order, each once, and what each was the first to reach.

        With ``latest``, only so many, those that were stored last.
        """
        own = (RunRow.stream == stream, RunRow.stream_index.is_not(None))
        recent = select(RunRow.id).where(*own).order_by(RunRow.id.desc()).limit(latest)
        query = (
            select(RunRow.stream_index, RunRow.id, RunRow.case_id, RunRow.screened, CaseRow.features)
            .join(CaseRow, RunRow.case_id == CaseRow.id)
            .where(*own if latest is None else (RunRow.id.in_(recent),))
            .order_by(RunRow.stream_index, RunRow.id)
        )
        opening = select(func.min(RunRow.id)).where(RunRow.is_bug).group_by(RunRow.finding_id)
        firsts, opened = first_reached(session, compiler), set(session.scalars(opening))
        runs: dict[int, StreamRun] = {}
        for index, run, case, screened, features in session.execute(query):
            if index is None:  # for the type checker: the query leaves these out
                continue
            runs[index] = StreamRun(index, tuple(features), screened, firsts.get(case, 0), run in opened)
        return list(runs.values())

    @reads
    def seeds(self, session: Session, compiler: str, profile: Mapping[str, object], *, limit: int = 64) -> list[Seed]:
        """Generated cases of that profile that were first to reach something; most first, then oldest first."""
        reached = select(CoverageRow.first_case_id).where(CoverageRow.torch == compiler)
        query = (
            select(CaseRow.id, CaseRow.sha256, CaseRow.choices, CaseRow.spec, RunRow.report)
            .join(RunRow, RunRow.case_id == CaseRow.id)
            .where(CaseRow.choices.is_not(None), CaseRow.id.in_(reached))
            .order_by(CaseRow.id, RunRow.id)
        )
        firsts = first_reached(session, compiler)
        seeds: dict[int, Seed] = {}
        for key, sha256, choices, spec, report in session.execute(query):
            if choices is not None and (spec or {}).get("profile") == profile:
                step = cast("ReportJson", report).get("evidence", {}).get("float64_step")
                seeds[key] = Seed(sha256, choices, firsts[key], step)
        return sorted(seeds.values(), key=lambda seed: -seed.firsts)[:limit]

    @reads
    def coverage(
        self, session: Session, compiler: str | None = None, *, until: datetime | None = None
    ) -> list[StoredCoverage]:
        """Return the rewrites, decompositions, lowerings and kernels that every compiler reached, or one alone.

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
        rows = session.execute(query.order_by(CoverageRow.torch, *identity))
        return [make_record(StoredCoverage, row, first_case_sha256=sha256) for row, sha256 in rows]

    @reads
    def counters(
        self, session: Session, stream: str | None = None, *, compiler: str | None = None, until: datetime | None = None
    ) -> Counters:
        """Counts over all runs, or those of one stream, by one compiler, or by campaigns until a moment."""
        chosen = [] if stream is None else [RunRow.stream == stream]
        if compiler is not None:
            rows = session.execute(select(EnvironmentRow.id, EnvironmentRow.details))
            alike = [key for key, details in rows if identify_compiler(details) == compiler]
            chosen.append(RunRow.environment_id.in_(alike))
        if until is not None:
            chosen += [RunRow.campaign_id.is_not(None), RunRow.created <= until]
        by_verdict = (
            select(RunRow.verdict, func.count()).where(*chosen).group_by(RunRow.verdict).order_by(RunRow.verdict)
        )
        verdicts = dict(session.execute(by_verdict).all())
        cases = count_distinct(session, RunRow.case_id, chosen)
        findings = count_distinct(session, RunRow.finding_id, chosen)
        return Counters(cases, sum(verdicts.values()), verdicts, findings)

    @reads
    def findings(self, session: Session, status: str | None = None, *, campaign_id: int | None = None) -> list[Finding]:
        """All findings, or those of a status or hit by a campaign; oldest first."""
        return finding_records(session, *list_conditions(status, campaign_id))

    @reads
    def unreduced(self, session: Session) -> dict[str, str]:
        """The public ids and signatures of the open findings without a reproducer; no case is looked at."""
        query = select(FindingRow.id, FindingRow.signature).where(
            FindingRow.status == "open", FindingRow.best_reproducer_id.is_(None)
        )
        return {public_id(key): signature for key, signature in session.execute(query.order_by(FindingRow.id))}

    @reads
    def findings_named(self, session: Session, signatures: Collection[str]) -> list[Finding]:
        """The findings of these signatures, oldest first."""
        return finding_records(session, FindingRow.signature.in_(signatures))

    @reads
    def summaries(
        self, session: Session, status: str | None = None, *, campaign_id: int | None = None
    ) -> list[FindingSummary]:
        """The same findings without reports and sources, which take long to read; the worst first."""
        found = summary_records(session, *list_conditions(status, campaign_id))
        return sorted(found, key=lambda finding: finding.place)

    @reads
    def finding(self, session: Session, name: str | int) -> Finding:
        """The finding called ``name``; a finding that was merged into another is that other one.

        Raises:
            UnknownFindingError: there is none, or more than one; the message lists what there is.
        """
        return finding_records(session, FindingRow.id == finding_id(session, name))[0]

    @reads
    def finding_of(self, session: Session, signature: str) -> str | None:
        """The public id of the finding that a report of this signature would be a hit of, if there is one."""
        row = find_finding(session, signature)
        return None if row is None else public_id(row.id)

    @reads
    def names_of(self, session: Session, finding: str | int) -> list[str]:
        """The signatures of a finding: its own, then those that it had, and those of findings merged into it."""
        return list_names(session, session.get_one(FindingRow, finding_id(session, finding)))

    @reads
    def describe(self, session: Session, finding: str | int) -> dict[str, object]:
        """What ``finding.json`` says of a finding (`fuzzcompile.corpus.queries.describe_finding`)."""
        return describe_finding(session, session.get_one(FindingRow, finding_id(session, finding)))

    @reads
    def environment_of(self, session: Session, finding: str | int) -> dict[str, object]:
        """The environment in which a finding's report was made; what is known of it, if it was not stored."""
        row = session.get_one(FindingRow, finding_id(session, finding))
        best = shown_reproducer(session, row)
        key = best.environment_id if best is not None else None
        return collect_details(session, key) or environment_of_runs(session, row, best)

    @reads
    def best_reproducer(self, session: Session, finding: str | int) -> Reproducer | None:
        """A confirmed one before others, then one of the worst severity, then the shortest."""
        row = session.get_one(FindingRow, finding_id(session, finding))
        best = None if row.best_reproducer_id is None else session.get_one(ReproducerRow, row.best_reproducer_id)
        return None if best is None else reproducer_record(session, best)

    @reads
    def reproducers(self, session: Session, finding: str | int) -> list[Reproducer]:
        """Every reproducer of a finding, oldest first."""
        key = finding_id(session, finding)
        rows = session.scalars(select(ReproducerRow).where(ReproducerRow.finding_id == key).order_by(ReproducerRow.id))
        return [reproducer_record(session, row) for row in rows]

    @reads
    def replays(self, session: Session, finding: str | int | None = None) -> list[StoredReplay]:
        """The replays of one finding or (None) of all, oldest first."""
        query = select(ReplayRow).order_by(ReplayRow.id)
        if finding is not None:
            query = query.where(ReplayRow.finding_id == finding_id(session, finding))
        return [make_record(StoredReplay, row, runs=tuple(row.runs)) for row in session.scalars(query)]

    @reads
    def related(self, session: Session, finding: str | int) -> list[Related]:
        """The public reports that a search found for a finding, the likeliest first."""
        key = finding_id(session, finding)
        query = select(RelatedRow).where(RelatedRow.finding_id == key).order_by(RelatedRow.score.desc())
        return [make_record(Related, row) for row in session.scalars(query)]

    @reads
    def umbrellas(self, session: Session) -> list[Umbrella]:
        """The groups that findings are in or of which a person said something, by name."""
        names = select(FindingRow.umbrella).where(FindingRow.umbrella.is_not(None)).distinct()
        marked = {row.name: make_record(Umbrella, row) for row in session.scalars(select(UmbrellaRow))}
        known = sorted({*filter(None, session.scalars(names)), *marked})
        return [marked.get(name) or Umbrella(name) for name in known]

    @reads
    def umbrella(self, session: Session, name: str | None) -> Umbrella | None:
        """The group of that name, and what a person said of it; None for no name."""
        return find_umbrella_mark(session, name)

    @reads
    def stats(self, session: Session) -> Stats:
        """Return the counts of the corpus."""
        return maintenance.stats(session)

    @reads
    def overview(self, session: Session) -> Overview:
        """All that a report on the corpus shows of findings and cases."""
        return overview(session)

    @reads
    def fleet(self, session: Session, at: datetime | None = None) -> Fleet:
        """Return the fleet at a moment; by default at the present of the corpus's server."""
        return fleet(session, at or present(session))

    def integrity(self) -> str:
        """``ok``, or what is wrong with the database."""
        return integrity(self._engine)
