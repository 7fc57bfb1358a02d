"""Queries inside a session: names of findings resolved, rows made into records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar, cast
from uuid import uuid4

from sqlalchemy import ColumnElement, CursorResult, and_, distinct, func, select, update
from sqlalchemy.orm import QueryableAttribute, Session

from fuzzcompile.corpus.machines import Hits, changed_campaigns, machines_by_finding
from fuzzcompile.corpus.models import (
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
from fuzzcompile.corpus.records import (
    Coverage,
    Finding,
    FindingSummary,
    Related,
    Replay,
    Reproducer,
    StoredReplay,
    Umbrella,
    UnknownFindingError,
    UntrustedError,
    public_id,
)
from fuzzcompile.model.hints import format_command

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


# What was stored since a moment: found by the ids of rows, which grow in the order in which they are stored.


@dataclass(frozen=True)
class Since:
    """The last rows that are known."""

    coverage: int
    finding: int
    run: int


@dataclass(frozen=True)
class News:
    """News: items that a compiler reached first, signatures of new findings, and signatures that were hit."""

    since: Since
    reached: tuple[Coverage, ...] = ()
    signatures: frozenset[str] = frozenset()
    hit: frozenset[str] = frozenset()


def news(session: Session, compiler: str, since: Since | None) -> News:
    """What was stored since; with None, only from where on the next call is to look."""
    keys = (CoverageRow.id, FindingRow.id, RunRow.id)
    now = Since(*(session.scalar(select(func.max(key))) or 0 for key in keys))
    if since is None:
        return News(now)
    columns = (CoverageRow.stage, CoverageRow.pass_name, CoverageRow.rewrite, CoverageRow.outcome, CoverageRow.count)
    rows = session.execute(select(*columns).where(CoverageRow.id > since.coverage, CoverageRow.torch == compiler))
    new = session.scalars(select(FindingRow.signature).where(FindingRow.id > since.finding))
    hits = select(RunRow.finding_id).where(RunRow.id > since.run, RunRow.finding_id.is_not(None))
    hit = session.scalars(select(FindingRow.signature).where(FindingRow.id.in_(hits)))
    reached = tuple(Coverage(*row) for row in rows)  # type: ignore[arg-type]  # the columns, in order
    return News(now, reached, frozenset(new), frozenset(hit))


# Which programs may be run: those of another corpus are foreign code until someone here trusts them.

_MOST_LISTED = 5
_CLAIM = "claimed:"


def claim() -> str:
    """The token of a run that a corpus which is not trusted tells of a case that is trusted here."""
    return f"{_CLAIM}{uuid4().hex}"


def is_claim(token: str | None) -> bool:
    """Return whether a run's token is such a one."""
    return token is not None and token.startswith(_CLAIM)


def is_trusted(case_imported: bool | None, reproducer_imported: bool | None) -> bool:
    """Whether a finding may be run, by the marks of its case and of its best reproducer; None for one it lacks."""
    return not (case_imported or reproducer_imported)


def require_trust(findings: Sequence[FindingSummary], corpus: str) -> None:
    """Refuse to run findings of another corpus that no one here trusts.

    Raises:
        UntrustedError: there are such; the message says how to read and how to trust them.
    """
    foreign = [finding.public_id for finding in findings if not finding.trusted]
    if not foreign:
        return
    few = len(foreign) <= _MOST_LISTED
    trusting = format_command("corpus", "trust", *(foreign if few else ()), all=not few, corpus=corpus)
    read = format_command("corpus", "show", foreign[0], corpus=corpus)
    if len(foreign) == 1:
        says = f"{foreign[0]} comes from another corpus, and running it runs its code: read it with `{read}`"
    else:
        listed = ", ".join(foreign) if few else f"{len(foreign)} findings ({', '.join(foreign[:_MOST_LISTED])}, ...)"
        says = f"{listed} come from another corpus, and running them runs their code: read each as with `{read}`"
    raise UntrustedError(f"{says}, then give --trust, or `{trusting}`.")


def trust(session: Session, finding_id: int) -> int:
    """Trust what a command would run of a finding now, its case and its best reproducer; how many were marked."""
    row = session.get_one(FindingRow, finding_id)
    case = update(CaseRow).where(CaseRow.id == row.case_id, CaseRow.imported)
    reproducer = update(ReproducerRow).where(ReproducerRow.id == row.best_reproducer_id, ReproducerRow.imported)
    return sum(_changed(session.execute(each.values(imported=False))) for each in (case, reproducer))


def trust_all(session: Session) -> int:
    """Trust every source of the corpus; how many were marked."""
    marked = (update(kind).where(kind.imported).values(imported=False) for kind in (CaseRow, ReproducerRow))
    return sum(_changed(session.execute(each)) for each in marked)


def _changed(result: object) -> int:
    return cast("CursorResult[Any]", result).rowcount


_FINDINGS_NAMED = 10
# With more findings than this, a list of their ids is slower than reading of all.
_MOST_NAMED = 500
Stored = TypeVar("Stored")
Value = TypeVar("Value")


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
    """Return whether a finding's signature begins with the text, in this case of letters, whatever the database."""
    # The index finds the few signatures in question: both databases compare code points there.
    return and_(FindingRow.signature >= text, FindingRow.signature < f"{text}\U0010ffff")


def shown_reproducer(session: Session, finding: FindingRow) -> ReproducerRow | None:
    """The reproducer whose report the finding shows, if it does not show that of a run."""
    return session.get_one(ReproducerRow, finding.best_reproducer_id) if finding.speaks_by_reproducer else None


def collect_details(session: Session, environment_id: int | None) -> dict[str, object] | None:
    """A stored environment."""
    row = None if environment_id is None else session.get(EnvironmentRow, environment_id)
    return None if row is None else dict(row.details)


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


# What a person reads of a finding besides its own columns, and by which joins.
_BEST = (ReproducerRow, FindingRow.best_reproducer_id == ReproducerRow.id)


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
        .outerjoin(*_BEST)
        .outerjoin(CaseRow, FindingRow.case_id == CaseRow.id)
        .where(*conditions)
        .order_by(FindingRow.id)
    )
    rows = session.execute(query).all()
    details = dict(session.execute(select(EnvironmentRow.id, EnvironmentRow.details)).all())
    seen = _seen_by_finding(session, [row.id for row in rows] if conditions else None)
    machines = machines_by_finding(session, conditions, {key: found.hits for key, found in seen.items()})
    found = []
    for row in rows:
        environments = [details[key] for key in seen[row.id].environments]
        found.append(
            make_record(
                FindingSummary,
                row,
                duplicate_of=None if row.duplicate_of_id is None else public_id(row.duplicate_of_id),
                torch_versions=tuple(dict.fromkeys(str(each["torch"]) for each in environments)),
                devices=tuple(dict.fromkeys(map(_compiled_for, environments))),
                reproducer_lines=row.lines,
                drawn_from=drawn_from(seen[row.id].features),
                machines=machines[row.id],
                trusted=is_trusted(row.case_imported, row.reproducer_imported),
            )
        )
    return found


def finding_records(session: Session, *conditions: ColumnElement[bool]) -> list[Finding]:
    """The findings that fulfil all conditions, oldest first."""
    query = (
        select(FindingRow.speaks_by_reproducer, FindingRow.evidence, RunRow.report, CaseRow, ReproducerRow)
        .join(RunRow, FindingRow.best_run_id == RunRow.id)
        .outerjoin(CaseRow, FindingRow.case_id == CaseRow.id)
        .outerjoin(*_BEST)
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
    return make_record(Reproducer, row, case_sha256=case, environment=collect_details(session, row.environment_id))


def list_names(session: Session, row: FindingRow) -> list[str]:
    """The signatures of a finding: its own, then those that it had, and those of findings merged into it."""
    former = select(FormerNameRow.signature).where(FormerNameRow.finding_id == row.id).order_by(FormerNameRow.id)
    return list(dict.fromkeys([row.signature, *session.scalars(former)]))


def find_umbrella_mark(session: Session, name: str | None) -> Umbrella | None:
    """The group of that name, and what a person said of it; None for no name."""
    row = None if name is None else session.get(UmbrellaRow, name)
    if row is not None:
        return make_record(Umbrella, row)
    return None if name is None else Umbrella(name)


def describe_finding(session: Session, row: FindingRow) -> dict[str, object]:
    """What ``finding.json`` says of a finding besides its reports and its programs, in JSON's own types."""
    related = select(RelatedRow).where(RelatedRow.finding_id == row.id).order_by(RelatedRow.score.desc())
    replays = session.scalars(select(ReplayRow).where(ReplayRow.finding_id == row.id).order_by(ReplayRow.id))
    group = find_umbrella_mark(session, row.umbrella)
    original = None if row.duplicate_of_id is None else session.get_one(FindingRow, row.duplicate_of_id)
    return {
        "names": list_names(session, row),
        "signature": row.signature,
        "status": row.status,
        "issue": row.issue,
        "note": row.note,
        "umbrella": row.umbrella,
        "severity": row.severity,
        "verdict": row.verdict,
        "confidence": row.confidence,
        "hits": row.hits,
        "umbrella_mark": group and vars(group),
        "duplicate_of": original and original.signature,
        "first_seen": row.first_seen.isoformat(),
        "last_seen": row.last_seen.isoformat(),
        "searched": row.searched and row.searched.isoformat(),
        "queries": row.queries,
        "related": [vars(make_record(Related, link)) for link in session.scalars(related)],
        "replays": [
            {**vars(make_record(Replay, each, runs=list(each.runs))), "created": each.created.isoformat()}
            for each in replays
        ],
    }


def environment_of_runs(session: Session, row: FindingRow, shown: ReproducerRow | None) -> dict[str, object]:
    """The environment of the finding's runs that fits best what it shows."""
    if shown is None:
        run = session.get_one(RunRow, row.best_run_id)
        return collect_details(session, run.environment_id) or {}
    seen = [collect_details(session, key) or {} for key in _seen_by_finding(session, [row.id])[row.id].environments]
    device = (shown.report or {}).get("device")
    alike = (details for details in seen if details["torch"] == shown.torch)
    return next(alike, {"torch": shown.torch, "device": device})


def first_reached(session: Session, compiler: str) -> dict[int, int]:
    """Count the items that each case was the first to reach with a compiler, by the case's id."""
    first = CoverageRow.first_case_id
    return dict(session.execute(select(first, func.count()).where(CoverageRow.torch == compiler).group_by(first)).all())


@dataclass
class _Seen:
    """The features of the cases that showed a finding, the environments in which they did, and which hits count."""

    features: list[list[str]] = field(default_factory=list)
    environments: dict[int, None] = field(default_factory=dict)
    hits: Hits = field(default_factory=Hits)


def _seen_by_finding(session: Session, wanted: Sequence[int] | None = None) -> dict[int, _Seen]:
    """The runs that hit each finding, or each of those wanted, the first first."""
    seen: dict[int, _Seen] = defaultdict(_Seen)
    changed = changed_campaigns(session)
    every = wanted is None or len(wanted) > _MOST_NAMED
    chosen = RunRow.finding_id.is_not(None) if every else RunRow.finding_id.in_(wanted or ())
    of_run = (RunRow.finding_id, RunRow.id, RunRow.environment_id, RunRow.campaign_id, RunRow.token)
    query = select(*of_run, CaseRow.features, CaseRow.imported).join(CaseRow, RunRow.case_id == CaseRow.id)
    for key, run, environment, campaign, token, features, imported in session.execute(
        query.where(chosen).order_by(RunRow.id)
    ):
        if key is None:  # for the type checker: the query leaves these out
            continue
        seen[key].features.append(features)
        seen[key].environments[environment] = None
        if campaign not in changed:
            hits = seen[key].hits.claimed if imported or is_claim(token) else seen[key].hits.own
            hits.setdefault(environment, run)
    return seen


def _compiled_for(environment: Mapping[str, object]) -> str:
    """The target that the compiler was told, or the type of the device that ran."""
    return str(environment.get("target") or str(environment.get("device") or "unknown").partition(":")[0])


def count_distinct(
    session: Session,
    column: QueryableAttribute[int] | QueryableAttribute[int | None],
    chosen: list[ColumnElement[bool]],
) -> int:
    """Count the distinct values of a column in the chosen runs."""
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


# Everything that a report on a corpus shows, read in one transaction with a few statements.


@dataclass(frozen=True)
class Judging:
    """Time at which a campaign had judged a case, and whether without generated code."""

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
    scripts = (
        select(FindingRow.id, ReproducerRow, CaseRow.sha256)
        .join(*_BEST)
        .outerjoin(CaseRow, ReproducerRow.case_id == CaseRow.id)
    )
    related = session.scalars(select(RelatedRow).order_by(RelatedRow.score.desc(), RelatedRow.id))
    replays = session.scalars(select(ReplayRow).order_by(ReplayRow.id))
    judgings = select(RunRow.campaign_id, RunRow.created, RunRow.screened).where(RunRow.campaign_id.is_not(None))
    return Overview(
        sorted(finding_records(session), key=lambda finding: finding.place),
        {
            key: make_record(Reproducer, row, case_sha256=case, environment=details.get(row.environment_id or 0))
            for key, row, case in session.execute(scripts)
        },
        _environments(session, details),
        _group((row.finding_id, make_record(Related, row)) for row in related),
        _group((row.finding_id, make_record(StoredReplay, row, runs=tuple(row.runs))) for row in replays),
        _group(session.execute(select(FormerNameRow.finding_id, FormerNameRow.signature)).tuples()),
        [
            Judging(campaign, moment, screened)
            for campaign, moment, screened in session.execute(judgings.order_by(RunRow.created, RunRow.id))
            if campaign is not None  # for the type checker: the query leaves these out
        ],
    )


def _environments(session: Session, details: Mapping[int, Mapping[str, object]]) -> dict[int, Mapping[str, object]]:
    """That of the reproducer's report where it speaks for the finding, else that of the best run."""
    query = (
        select(FindingRow.id, FindingRow.speaks_by_reproducer, ReproducerRow.environment_id, RunRow.environment_id)
        .outerjoin(*_BEST)
        .outerjoin(RunRow, FindingRow.best_run_id == RunRow.id)
    )
    chosen = (
        (key, (of_script if speaks else None) or of_run) for key, speaks, of_script, of_run in session.execute(query)
    )
    return {key: details[environment] for key, environment in chosen if environment is not None}


def _group(pairs: Iterable[tuple[int, Value]]) -> dict[int, list[Value]]:
    grouped = defaultdict[int, list[Value]](list)
    for finding, value in pairs:
        grouped[finding].append(value)
    return dict(grouped)
