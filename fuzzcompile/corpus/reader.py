"""Reads from an open corpus, each call in a transaction of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from sqlalchemy import Row, distinct, func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus import fleet, maintenance, transactions
from fuzzcompile.corpus.connection import Transacting, reads
from fuzzcompile.corpus.databases import integrity
from fuzzcompile.corpus.machines import seen_by_finding
from fuzzcompile.corpus.merge import find_finding
from fuzzcompile.corpus.models import (
    CampaignRow,
    CaseRow,
    CoverageRow,
    EnvironmentRow,
    FindingRow,
    FormerNameRow,
    Related,
    Replay,
    ReproducerRow,
    RunRow,
    Umbrella,
)
from fuzzcompile.corpus.queries import (
    BEST,
    describe_finding,
    find_umbrella,
    finding_id,
    finding_records,
    list_conditions,
    make_record,
    reproducer_record,
    summary_records,
)
from fuzzcompile.corpus.records import (
    CaseRecord,
    Counters,
    Coverage,
    Finding,
    FindingSummary,
    JudgedCase,
    Reproducer,
    Seed,
    StreamRun,
    identify_compiler,
    public_id,
)
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.severity import Severity

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson

Value = TypeVar("Value")
# The last rows that are known, of coverage, findings and runs: ids grow in the order in which rows are stored.
Since: TypeAlias = tuple[int, int, int]
# A case judged by a campaign: ``campaign_id``, ``moment``, and whether it was ``screened``, without generated code.
Judging: TypeAlias = "Row[int | None, datetime, bool]"
_LEAST_DIGITS = 6


@dataclass(frozen=True)
class News:
    """News: items that a compiler reached first, signatures of new findings, and signatures that were hit."""

    since: Since
    reached: tuple[Coverage, ...] = ()
    signatures: frozenset[str] = frozenset()
    hit: frozenset[str] = frozenset()


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
class Overview:
    """The findings, the worst first, and what belongs to each by its row's id; the cases that campaigns judged.

    ``environments`` are those in which the reports were made, as far as they were stored, ``former`` the signatures
    that findings had before.
    """

    findings: Sequence[Finding]
    reproducers: Mapping[int, Reproducer]
    environments: Mapping[int, Mapping[str, object]]
    related: Mapping[int, Sequence[Related]]
    replays: Mapping[int, Sequence[Replay]]
    former: Mapping[int, Sequence[str]]
    judgings: Sequence[Judging]


class Reader(Transacting):
    """The reading half of a `Store`. A finding is named by id (3, "3", "F3"), signature, or beginning of one."""

    @reads
    def campaigns(self, session: Session) -> list[CampaignRow]:
        """Every campaign, oldest first."""
        return list(session.scalars(select(CampaignRow).order_by(CampaignRow.id)))

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
        """What was stored since; with None, only from where on the next call is to look."""
        keys = (CoverageRow.id, FindingRow.id, RunRow.id)
        coverage, finding, run = (session.scalar(select(func.max(key))) or 0 for key in keys)
        now = (coverage, finding, run)
        if since is None:
            return News(now)
        columns = (
            CoverageRow.stage,
            CoverageRow.pass_name,
            CoverageRow.rewrite,
            CoverageRow.outcome,
            CoverageRow.count,
        )
        rows = session.execute(select(*columns).where(CoverageRow.id > since[0], CoverageRow.torch == compiler))
        new = session.scalars(select(FindingRow.signature).where(FindingRow.id > since[1]))
        hits = select(RunRow.finding_id).where(RunRow.id > since[2], RunRow.finding_id.is_not(None))
        hit = session.scalars(select(FindingRow.signature).where(FindingRow.id.in_(hits)))
        reached = tuple(Coverage(*row) for row in rows)  # type: ignore[arg-type]  # the columns, in order
        return News(now, reached, frozenset(new), frozenset(hit))

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
    def judged(self, session: Session, name: str) -> tuple[CaseRow, list[JudgedRun]]:
        """The case whose hash begins with ``name`` (reports put ``case_`` before it), and its runs, oldest first.

        The source is empty where `fuzzcompile.corpus.maintenance` has dropped it.
        """
        digits = name.removeprefix("case_").lower()
        if len(digits) < _LEAST_DIGITS or not set(digits) <= set("0123456789abcdef"):
            raise UsageError(f"{name} is no case: name it by {_LEAST_DIGITS} or more digits of its hash.")
        # A range, which the index on the hash answers; the letter g comes after every digit.
        begins = (CaseRow.sha256 >= digits, CaseRow.sha256 < f"{digits}g")
        rows = session.scalars(select(CaseRow).where(*begins).limit(2)).all()
        if len(rows) != 1:
            raise UsageError(
                f"{'More than one case has' if rows else 'No case has'} a hash that begins with {digits}: "
                + ("give more digits." if rows else "`fuzzcompile run --log FILE` and reports name cases.")
            )
        query = (
            select(RunRow, EnvironmentRow.details, CampaignRow.settings)
            .join(EnvironmentRow, RunRow.environment_id == EnvironmentRow.id)
            .outerjoin(CampaignRow, RunRow.campaign_id == CampaignRow.id)
            .where(RunRow.case_id == rows[0].id)
            .order_by(RunRow.id)
        )
        runs = [
            JudgedRun(
                cast("ReportJson", run.report),
                environment,
                settings and {name: settings.get(name) for name in ("vetoes", "plants", "custom")},
                run.screened,
                None if run.finding_id is None else public_id(run.finding_id),
                None if run.stream is None or run.stream_index is None else (run.stream, run.stream_index),
                run.created,
            )
            for run, environment, settings in session.execute(query)
        ]
        return rows[0], runs

    @reads
    def stream_runs(self, session: Session, stream: str, compiler: str, latest: int | None = None) -> list[StreamRun]:
        """The judged cases of a stream in its order, each once, and what each was the first to reach.

        With ``latest``, only so many, those that were stored last.
        """
        own = (RunRow.stream == stream, RunRow.stream_index.is_not(None))
        recent = select(RunRow.id).where(*own).order_by(RunRow.id.desc()).limit(latest)
        query = (
            select(
                RunRow.stream_index,
                RunRow.id,
                RunRow.case_id,
                RunRow.screened,
                CaseRow.features,
                RunRow.seconds,
                FindingRow.severity,
            )
            .join(CaseRow, RunRow.case_id == CaseRow.id)
            .outerjoin(FindingRow, RunRow.finding_id == FindingRow.id)
            .where(*own if latest is None else (RunRow.id.in_(recent),))
            .order_by(RunRow.stream_index, RunRow.id)
        )
        opening = select(func.min(RunRow.id)).where(RunRow.is_bug).group_by(RunRow.finding_id)
        firsts, opened = _first_reached(session, compiler), set(session.scalars(opening))
        runs: dict[int, StreamRun] = {}
        for index, run, case, screened, features, seconds, shown in session.execute(query):
            if index is None:  # for the type checker: the query leaves these out
                continue
            severity = Severity(shown) if shown is not None and run in opened else None
            runs[index] = StreamRun(index, tuple(features), screened, firsts.get(case, 0), severity, seconds or 0.0)
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
        firsts = _first_reached(session, compiler)
        seeds: dict[int, Seed] = {}
        for key, sha256, choices, spec, report in session.execute(query):
            if choices is not None and (spec or {}).get("profile") == profile:
                step = cast("ReportJson", report).get("evidence", {}).get("float64_step")
                seeds[key] = Seed(sha256, choices, firsts[key], step)
        return sorted(seeds.values(), key=lambda seed: -seed.firsts)[:limit]

    @reads
    def coverage(
        self, session: Session, compiler: str | None = None, *, until: datetime | None = None
    ) -> list[CoverageRow]:
        """Return the rewrites, decompositions, lowerings and kernels that every compiler reached, or one alone.

        With ``until``, only what was first reached by a case that campaigns had judged by then; a case that was judged
        more than once counts from its last run. The counts stay those of the whole corpus.
        """
        identity = (CoverageRow.stage, CoverageRow.pass_name, CoverageRow.rewrite, CoverageRow.outcome)
        query = select(CoverageRow)
        if compiler is not None:
            query = query.where(CoverageRow.torch == compiler)
        if until is not None:
            judged = select(RunRow.case_id).where(RunRow.campaign_id.is_not(None)).group_by(RunRow.case_id)
            query = query.where(CoverageRow.first_case_id.in_(judged.having(func.max(RunRow.created) <= until)))
        return list(session.scalars(query.order_by(CoverageRow.torch, *identity)))

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
        counts = select(func.count(distinct(RunRow.case_id)), func.count(distinct(RunRow.finding_id))).where(*chosen)
        cases, findings = session.execute(counts).one()
        return Counters(cases, sum(verdicts.values()), verdicts, findings)

    @reads
    def judged_cases(self, session: Session, compiler: str, *, until: datetime | None = None) -> list[JudgedCase]:
        """The trusted cases that campaigns judged by a compiler (``until`` a moment), each as it was judged last."""
        rows = session.execute(select(EnvironmentRow.id, EnvironmentRow.details))
        alike = [key for key, details in rows if identify_compiler(details) == compiler]
        columns = CaseRow.sha256, CaseRow.source, RunRow.screened
        query = select(*columns).join(CaseRow, CaseRow.id == RunRow.case_id).where(RunRow.campaign_id.is_not(None))
        query = query.where(RunRow.environment_id.in_(alike), CaseRow.imported.is_(False))
        found = session.execute(query if until is None else query.where(RunRow.created <= until))
        last = {sha256: (source, screened) for sha256, source, screened in found}
        return [JudgedCase(f"case_{sha256[:12]}", *rest) for sha256, rest in last.items()]

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
        """The finding called ``name``; a finding that was merged into another is that other one."""
        return finding_records(session, FindingRow.id == finding_id(session, name))[0]

    @reads
    def finding_of(self, session: Session, signature: str) -> str | None:
        """The public id of the finding that a report of this signature would be a hit of, if there is one."""
        row = find_finding(session, signature)
        return None if row is None else public_id(row.id)

    @reads
    def describe(self, session: Session, finding: str | int) -> dict[str, Any]:
        """What ``finding.json`` says of a finding (`fuzzcompile.corpus.queries.describe_finding`)."""
        return describe_finding(session, session.get_one(FindingRow, finding_id(session, finding)))

    @reads
    def environment_of(self, session: Session, finding: str | int) -> dict[str, object]:
        """The environment in which a finding's report was made; what is known of it, if it was not stored."""
        row = session.get_one(FindingRow, finding_id(session, finding))
        shown = session.get_one(ReproducerRow, row.best_reproducer_id) if row.speaks_by_reproducer else None
        made = session.get_one(RunRow, row.best_run_id) if shown is None else shown
        if made.environment_id is not None:
            return session.get_one(EnvironmentRow, made.environment_id).details
        seen = seen_by_finding(session, [row.id])[row.id].environments
        known = [session.get_one(EnvironmentRow, key).details for key in seen]
        of_shown = {"torch": shown.torch, "device": (shown.report or {}).get("device")} if shown else {}
        return next((details for details in known if details["torch"] == of_shown.get("torch")), of_shown)

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
    def replays(self, session: Session, finding: str | int | None = None) -> list[Replay]:
        """The replays of one finding or (None) of all, oldest first."""
        query = select(Replay).order_by(Replay.id)
        if finding is not None:
            query = query.where(Replay.finding_id == finding_id(session, finding))
        return list(session.scalars(query))

    @reads
    def related(self, session: Session, finding: str | int) -> list[Related]:
        """The public reports that a search found for a finding, the likeliest first."""
        key = finding_id(session, finding)
        query = select(Related).where(Related.finding_id == key).order_by(Related.score.desc())
        return list(session.scalars(query))

    @reads
    def umbrellas(self, session: Session) -> list[Umbrella]:
        """The groups that findings are in or of which a person said something, by name."""
        names = select(FindingRow.umbrella).where(FindingRow.umbrella.is_not(None)).distinct()
        marked = {row.name: row for row in session.scalars(select(Umbrella))}
        known = sorted({*filter(None, session.scalars(names)), *marked})
        return [marked.get(name) or Umbrella(name) for name in known]

    @reads
    def umbrella(self, session: Session, name: str | None) -> Umbrella | None:
        """The group of that name, and what a person said of it; None for no name."""
        return find_umbrella(session, name)

    @reads
    def count_grouped(self, session: Session, name: str) -> int:
        """Return how many findings are in the group of that name."""
        return session.scalar(select(func.count()).where(FindingRow.umbrella == name)) or 0

    @reads
    def stats(self, session: Session) -> maintenance.Stats:
        """Return the counts of the corpus."""
        return maintenance.stats(session)

    @reads
    def overview(self, session: Session) -> Overview:
        """All that a report on the corpus shows of findings and cases, read with a few statements."""
        details = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
        scripts = (
            select(FindingRow.id, ReproducerRow, CaseRow.sha256)
            .join(*BEST)
            .outerjoin(CaseRow, ReproducerRow.case_id == CaseRow.id)
        )
        made_in = (
            select(FindingRow.id, FindingRow.speaks_by_reproducer, ReproducerRow.environment_id, RunRow.environment_id)
            .outerjoin(*BEST)
            .outerjoin(RunRow, FindingRow.best_run_id == RunRow.id)
        )
        environments = {
            key: (of_script if speaks else None) or of_run
            for key, speaks, of_script, of_run in session.execute(made_in)
        }
        judgings = select(RunRow.campaign_id, RunRow.created.label("moment"), RunRow.screened)
        judgings = judgings.where(RunRow.campaign_id.is_not(None)).order_by(RunRow.created, RunRow.id)
        related = session.scalars(select(Related).order_by(Related.score.desc(), Related.id))
        return Overview(
            sorted(finding_records(session), key=lambda finding: finding.place),
            {
                key: make_record(Reproducer, row, case_sha256=case, environment=details.get(row.environment_id or 0))
                for key, row, case in session.execute(scripts)
            },
            {key: details[environment] for key, environment in environments.items() if environment is not None},
            _group((row.finding_id, row) for row in related),
            _group((row.finding_id, row) for row in session.scalars(select(Replay).order_by(Replay.id))),
            _group((row.finding_id, row.signature) for row in session.scalars(select(FormerNameRow))),
            session.execute(judgings).all(),
        )

    @reads
    def fleet(self, session: Session, at: datetime | None = None) -> fleet.Fleet:
        """Return the fleet at a moment; by default at the present of the corpus's server."""
        return fleet.survey(session, at or transactions.present(session))

    def integrity(self) -> str:
        """``ok``, or what is wrong with the database."""
        return integrity(self._engine)


def _first_reached(session: Session, compiler: str) -> dict[int, int]:
    first = CoverageRow.first_case_id
    return dict(session.execute(select(first, func.count()).where(CoverageRow.torch == compiler).group_by(first)).all())


def _group(pairs: Iterable[tuple[int, Value]]) -> dict[int, list[Value]]:
    grouped = defaultdict[int, list[Value]](list)
    for finding, value in pairs:
        grouped[finding].append(value)
    return dict(grouped)
