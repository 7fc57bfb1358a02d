"""The report that a finding shows, the owner of a reproducer, and the merging of two findings.

Four rules (docs/machines.md). A signature that was refined replaces a coarse one of the same place. Two findings that
get the same signature are one, and so are two whose confirmed reproducers are the same program up to names, unless one
raises where the other runs. Two findings that raise alike are one (:func:`~fuzzcompile.model.signatures.raise_alike`).
And a reproducer that shows another cause than its finding is no reproducer of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeAlias, cast

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from fuzzcompile.corpus.models import CaseRow, FindingRow, FormerNameRow, Related, Replay, ReproducerRow, RunRow
from fuzzcompile.corpus.queries import starts_with
from fuzzcompile.corpus.records import public_id
from fuzzcompile.model.severity import Severity, rank, rate_severity
from fuzzcompile.model.signatures import (
    agree,
    can_show_as,
    drop_fingerprint,
    is_provisional,
    is_unproved,
    name_by_case,
    name_same_place,
    parse_file,
    parse_fingerprint,
    parse_stage,
    raise_alike,
    raise_otherwise,
    renew,
)
from fuzzcompile.model.stages import FUNCTIONALIZATION
from fuzzcompile.model.verdicts import ERRORS

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


# Which finding a report is a hit of (docs/machines.md).


def find_finding(session: Session, signature: str, report: ReportJson | None = None) -> FindingRow | None:
    """The finding that a report of this signature is a hit of; None if it is a new one.

    With the report, an error is a hit of a finding at the same place that raises alike, whatever the causes are called.
    Else a coarse signature is a hit of the only refined one of its place, unless that is of a symptom that the report
    does not have; where there are several, that is not decided until the case has been minimized. Nor is it for an
    error and what has nothing in common with it, while the cause of one of them is not known.
    """
    exact = find_named(session, signature)
    if exact is not None and (report is None or not _shows_otherwise(session, report, exact)):
        return exact
    rows = _of_place(session, signature)
    alike = _raising_alike(session, report, signature) if report is not None else []
    if alike:
        return alike[0]
    cause = parse_fingerprint(signature)
    near = [
        row
        for row in rows
        if cause in (None, parse_fingerprint(row.signature))
        and agree(renew(row.signature), signature)
        and _may_show(session, row, report, cause)
    ]
    if near:
        return near[0] if len(near) == 1 else None
    former = select(FormerNameRow.finding_id).where(FormerNameRow.signature == signature).distinct()
    named = [session.get_one(FindingRow, key) for key in session.scalars(former.limit(2))]
    says_all = cause is not None or is_unproved(signature)
    return named[0] if len(named) == 1 and (says_all or _may_show(session, named[0], report, cause)) else None


def _may_show(session: Session, finding: FindingRow, report: ReportJson | None, cause: str | None) -> bool:
    """Whether a report with the ``cause``, if that is known, may be of the bug of a finding at its place."""
    if report is None:
        return True
    fits = cause is not None or can_show_as(finding.signature, report["verdict"])
    return fits and not _shows_otherwise(session, report, finding)


def _raising_alike(session: Session, report: ReportJson, signature: str) -> list[FindingRow]:
    """The findings of the same stage whose best run raises as the report says, oldest first."""
    if report.get("verdict") not in ERRORS:
        return []
    of_stage = starts_with(f"{parse_stage(signature)}:"), FindingRow.verdict.in_(map(str, ERRORS))
    rows = session.scalars(select(FindingRow).where(*of_stage).order_by(FindingRow.id))
    return [row for row in rows if raise_alike(report, best_report(session, row))]


def _shows_otherwise(session: Session, report: ReportJson, finding: FindingRow) -> bool:
    """Whether an error has nothing in common with the finding at its place, and no cause says that they are one.

    What AOTAutograd does wrong shows in values and in errors.
    """
    signature = renew(finding.signature)
    is_one_cause = signature == report["signature"] and parse_fingerprint(signature) is not None
    if is_one_cause or name_by_case(signature, "0") == signature:
        return False
    best = best_report(session, finding)
    if parse_stage(signature) != FUNCTIONALIZATION and (report["verdict"] in ERRORS) != (best["verdict"] in ERRORS):
        return True
    return raise_otherwise(report, best)


def find_named(session: Session, signature: str) -> FindingRow | None:
    """The finding of just this signature."""
    return session.scalar(select(FindingRow).where(FindingRow.signature == signature))


def best_report(session: Session, finding: FindingRow) -> ReportJson:
    """The report on the finding's best run, whose details the finding itself leaves out."""
    return cast("ReportJson", session.get_one(RunRow, finding.best_run_id).report)


def keep_name(session: Session, finding: FindingRow, signature: str) -> None:
    """Let the signature of a hit go on naming the finding.

    A finding under the signature that an earlier version gave it takes the present one.
    """
    if signature == renew(finding.signature) != finding.signature:
        session.add(FormerNameRow(finding_id=finding.id, signature=finding.signature, merged_id=None))
        finding.signature = signature
    elif parse_fingerprint(signature) is not None and signature != finding.signature:
        named = (FormerNameRow.finding_id == finding.id, FormerNameRow.signature == signature)
        if session.scalar(select(FormerNameRow.id).where(*named).limit(1)) is None:
            session.add(FormerNameRow(finding_id=finding.id, signature=signature, merged_id=None))
    session.flush()


def _of_place(session: Session, signature: str) -> list[FindingRow]:
    """The findings of the same place in the compiler, oldest first; of an error without one, of the same message."""
    if is_unproved(signature):
        return []
    place = drop_fingerprint(signature)
    begins = ":".join(place.split(":")[:2])
    rows = session.scalars(select(FindingRow).where(starts_with(f"{begins}:")).order_by(FindingRow.id))
    return [row for row in rows if name_same_place(renew(row.signature), signature)]


# Whose report a finding shows.


def speaks_for(signature: str, reproduced: Mapping[str, object], judged: Mapping[str, object]) -> bool:
    """Tell whether a finding shows the report on its confirmed reproducer, rather than that ``judged`` on its best run.

    It does, so that all that is said of it is about the script that is shown. Only a report that lost the place in the
    compiler on the way, where the run proved it, gives way.
    """
    if not reproduced.get("is_bug"):
        return False
    culprit = judged.get("culprit")
    is_proved = isinstance(culprit, Mapping) and culprit.get("necessary") is True
    return agree(str(reproduced.get("signature") or signature), signature) or not is_proved


# Groups of findings that one issue stands for.

VALIDATION = "validation"
LAYOUT = "layout"
OPT_IN = "opt_in"


def find_umbrella(severity: str | None, signature: str) -> str | None:
    """The group of a finding, None for one that stands alone.

    What eager refuses and the compiler accepts is one group (``validation``): each operator whose decomposition forgot
    a check shows it anew. Harmless layouts are one for each stage (``layout-decomposition``), and what needs a setting
    that is off by default one for each file (``opt_in-split_cat``): passes of a file have one author and share helpers.
    """
    if severity == Severity.OPT_IN:
        file = parse_file(signature)
        return None if file is None else f"{OPT_IN}-{PurePosixPath(file).stem}"
    if severity == Severity.ACCEPTS_INVALID:
        return VALIDATION
    return f"{LAYOUT}-{parse_stage(signature)}" if severity == Severity.LAYOUT else None


# How well a run shows its finding; the least is the best.
Rank: TypeAlias = tuple[tuple[int, bool], bool, bool, bool, int]

OPEN = "open"


# -- whose a reproducer is ----------------------------------------------------------------------------------


def new_finding(session: Session, signature: str, run: RunRow) -> FindingRow:
    """A finding without hits, under an id that none had before: reports and drafts out in the world name it."""
    highest = (session.scalar(select(func.max(column))) or 0 for column in (FindingRow.id, FormerNameRow.merged_id))
    row = FindingRow(id=max(highest) + 1, signature=signature, status=OPEN, verdict=run.verdict, hits=0)
    row.first_seen = row.last_seen = run.created
    session.add(row)
    session.flush()
    return row


def settle(
    session: Session, finding: FindingRow, reproducer: ReproducerRow, *, anew: bool = False
) -> tuple[FindingRow, tuple[int, ...]]:
    """Refine the finding by what its confirmed reproducer showed, and merge it with those that are the same bug.

    ``anew``: the reproducer was the finding's own and was judged again, so that its signature is the finding's.

    Returns:
        The finding that is left, and the ids of those that vanished into it.
    """
    if not reproducer.confirmed:
        return finding, ()
    merged: list[int] = []
    signature = _signature(reproducer)
    if (
        signature is not None
        and signature != finding.signature
        and (
            (anew and not _says_more(finding.signature, signature))
            or is_unproved(finding.signature)
            or _says_more(signature, finding.signature)
            or (belongs_apart(session, finding, reproducer) and _is_all_there_is(session, finding, reproducer))
        )
    ):
        namesake, former = find_named(session, signature), finding.signature
        _remember(session, finding)
        if namesake is not None:
            finding = _merge(session, [finding, namesake], merged)
        finding.signature = signature
        session.flush()
        _leave_behind(session, finding, former)
    report = cast("ReportJson", reproducer.report or {})
    near = [row for row in _raising_alike(session, report, finding.signature) if row.id != finding.id]
    twins = [*_of_the_same_program(session, finding, reproducer), *near]
    if twins := list(dict.fromkeys(twins)):
        finding = _merge(session, [finding, *twins], merged)
    return finding, tuple(merged)


def belongs_apart(session: Session, finding: FindingRow, reproducer: ReproducerRow) -> bool:
    """Return whether the reproducer shows another cause than the finding it was made for, at the same place."""
    signature = _signature(reproducer) or finding.signature
    if not name_same_place(signature, finding.signature) or agree(signature, finding.signature):
        return False
    return not raise_alike(cast("ReportJson", reproducer.report), best_report(session, finding))


def move_apart(session: Session, finding: FindingRow, reproducer: ReproducerRow) -> tuple[FindingRow, bool]:
    """Give a reproducer of another cause, and the runs of its case, to the finding of that cause, which may be new.

    It stays, and is never the best, where neither that finding nor the case is known.
    """
    signature = _signature(reproducer) or finding.signature
    target = find_named(session, signature)
    of_case = (RunRow.finding_id == finding.id, RunRow.case_id == reproducer.case_id)
    runs = session.scalars(select(RunRow).where(*of_case)).all()
    if _is_all_there_is(session, finding, reproducer) or (target is None and not runs):
        return finding, False
    is_new = target is None
    target = target or new_finding(session, signature, runs[0])
    reproducer.finding_id = target.id
    _move_runs(session, runs, finding, target)
    return target, is_new


def _leave_behind(session: Session, finding: FindingRow, former: str) -> None:
    """Leave the runs that a symptom does not explain under the ``former`` name of a finding that it was refined to."""
    runs = session.scalars(select(RunRow).where(RunRow.finding_id == finding.id)).all()
    others = [run for run in runs if not can_show_as(finding.signature, run.verdict)]
    if parse_fingerprint(former) is None and others and len(others) < len(runs):
        _move_runs(session, others, finding, new_finding(session, former, others[0]))


def _move_runs(session: Session, runs: Sequence[RunRow], finding: FindingRow, target: FindingRow) -> None:
    for run in runs:
        run.finding_id = target.id
    target.hits, finding.hits = target.hits + len(runs), finding.hits - len(runs)
    session.flush()
    for row in (finding, target):  # when it was seen, and its best run
        rows = session.execute(
            select(RunRow, CaseRow.source)
            .join(CaseRow, RunRow.case_id == CaseRow.id)
            .where(RunRow.finding_id == row.id)
        ).all()
        row.first_seen, row.last_seen = (end(run.created for run, _ in rows) for end in (min, max))
        best = min(rows, key=lambda each: run_rank(cast("ReportJson", each[0].report), each[1]))
        row.best_run_id = best[0].id
        choose(session, row)


# -- what a finding shows ---------------------------------------------------------------------------


def choose(session: Session, finding: FindingRow) -> None:
    """Let the finding speak of its best reproducer, or of its best run if no confirmed one shows it."""
    rows = session.scalars(select(ReproducerRow).where(ReproducerRow.finding_id == finding.id)).all()

    def place(row: ReproducerRow) -> tuple[object, ...]:
        apart, severity = belongs_apart(session, finding, row), rank(cast("ReportJson | None", row.report))
        return (apart, not row.confirmed, severity, row.lines, row.id)

    best = min(rows, key=place, default=None)
    finding.best_reproducer_id = None if best is None else best.id
    run = session.get_one(RunRow, finding.best_run_id)
    finding.speaks_by_reproducer = (
        best is not None and best.confirmed and speaks_for(finding.signature, best.report or {}, run.report)
    )
    shown = best if finding.speaks_by_reproducer else None
    if shown is None:
        report, finding.case_id = run.report, run.case_id
    else:
        report = shown.report or {}
        alike = run.verdict == report["verdict"] and agree(*(str(r.get("signature")) for r in (run.report, report)))
        finding.case_id = shown.case_id or (run.case_id if alike else None)
    finding.verdict, finding.confidence = str(report["verdict"]), cast("str | None", report.get("confidence"))
    evidence = report.get("evidence")
    finding.culprit = in_short(report.get("culprit"))
    finding.evidence = evidence if isinstance(evidence, dict) else None
    finding.severity = rate_severity(cast("ReportJson", report))
    finding.umbrella = find_umbrella(finding.severity, finding.signature)
    session.flush()


def take_if_better(session: Session, finding: FindingRow, run: RunRow, source: str) -> bool:
    """Make the run the finding's best if it shows the bug better than what is the best so far."""
    if finding.best_run_id is not None:
        report, other = session.execute(
            select(RunRow.report, CaseRow.source)
            .join(CaseRow, RunRow.case_id == CaseRow.id)
            .where(RunRow.id == finding.best_run_id)
        ).one()
        if run_rank(cast("ReportJson", run.report), source) >= run_rank(cast("ReportJson", report), other):
            return False
    finding.best_run_id = run.id
    return True


def run_rank(report: ReportJson, source: str) -> Rank:
    """Return a sort key for runs that show a finding: the worst symptom first, then proof, then the shorter program."""
    culprit = report.get("culprit") or {}
    return (
        rank(report),
        report.get("confidence") != "high",
        culprit.get("necessary") is not True,
        culprit.get("sufficient") is not True,
        len(source),
    )


# -- two become one ---------------------------------------------------------------------------------


def _says_more(signature: str, known: str) -> bool:
    """Return whether a signature says more of a bug than the one that is known."""
    if is_unproved(known):
        return not is_unproved(signature)
    known_cause = parse_fingerprint(known) is not None and not is_provisional(known)
    own_cause = parse_fingerprint(signature) is not None and not is_provisional(signature)
    return name_same_place(signature, known) and own_cause and not known_cause


def _is_all_there_is(session: Session, finding: FindingRow, reproducer: ReproducerRow) -> bool:
    """Whether nothing else is known to show what the finding was named for: no other reproducer, no other case."""
    others = select(ReproducerRow.id).where(
        ReproducerRow.finding_id == finding.id, ReproducerRow.id != reproducer.id, ReproducerRow.confirmed
    )
    if session.scalar(others.limit(1)) is not None:
        return False
    if reproducer.case_id is None:
        return True
    elsewhere = select(RunRow.id).where(RunRow.finding_id == finding.id, RunRow.case_id != reproducer.case_id)
    return session.scalar(elsewhere.limit(1)) is None


def _of_the_same_program(session: Session, finding: FindingRow, reproducer: ReproducerRow) -> list[FindingRow]:
    if reproducer.program is None:
        return []
    alike = select(ReproducerRow.finding_id).where(
        ReproducerRow.program == reproducer.program, ReproducerRow.confirmed, ReproducerRow.finding_id != finding.id
    )
    rows = session.scalars(select(FindingRow).where(FindingRow.id.in_(alike)).order_by(FindingRow.id)).all()
    # What keeps two findings of one program apart: raising, or accepting what eager refuses.
    apart = {str(Severity.ERROR), str(Severity.ACCEPTS_INVALID)}
    own = {rate_severity(cast("ReportJson | None", reproducer.report))} & apart
    return [row for row in rows if {row.severity} & apart == own]


def _merge(session: Session, findings: Sequence[FindingRow], merged: list[int]) -> FindingRow:
    """Make one of several findings: the oldest, under its signature unless another's says more."""
    survivor, *others = sorted(findings, key=lambda row: row.id)
    for row in others:
        said = row.signature
        merged.append(row.id)
        _absorb(session, survivor, row)
        if _says_more(said, survivor.signature):
            _remember(session, survivor)
            survivor.signature = said
            session.flush()
    return survivor


def _absorb(session: Session, survivor: FindingRow, vanishing: FindingRow) -> None:
    """Give everything of one finding to an older one, and remember what it was called."""
    key, old = survivor.id, vanishing.id
    # The older finding's mark stands, the other's goes into its note.
    if vanishing.status == OPEN:
        said = vanishing.note
    elif survivor.status == OPEN:
        survivor.status, survivor.duplicate_of_id = vanishing.status, vanishing.duplicate_of_id
        survivor.issue, said = vanishing.issue or survivor.issue, vanishing.note
    else:
        mark = " ".join(filter(None, (vanishing.status, vanishing.issue, vanishing.note)))
        said = f"{public_id(vanishing.id)}, merged into this: {mark}"
    survivor.note = "; ".join(dict.fromkeys(filter(None, (survivor.note, said)))) or None
    own_scripts = select(ReproducerRow.sha256).where(ReproducerRow.finding_id == key)
    own_links = select(Related.url).where(Related.finding_id == key)
    better = session.get_one(RunRow, vanishing.best_run_id)
    vanishing.best_reproducer_id = vanishing.best_run_id = None
    session.flush()
    of_old = ReproducerRow.finding_id == old
    session.execute(delete(ReproducerRow).where(of_old, ReproducerRow.sha256.in_(own_scripts)))
    session.execute(delete(Related).where(Related.finding_id == old, Related.url.in_(own_links)))
    for kind in (ReproducerRow, RunRow, Replay, Related, FormerNameRow):
        session.execute(update(kind).where(kind.finding_id == old).values(finding_id=key))
    session.execute(update(FindingRow).where(FindingRow.duplicate_of_id == old).values(duplicate_of_id=key))
    session.add(FormerNameRow(finding_id=key, signature=vanishing.signature, merged_id=old))
    survivor.hits += vanishing.hits
    survivor.first_seen = min(survivor.first_seen, vanishing.first_seen)
    survivor.last_seen = max(survivor.last_seen, vanishing.last_seen)
    survivor.searched = max(filter(None, (survivor.searched, vanishing.searched)), default=None)
    survivor.queries = list(dict.fromkeys([*(survivor.queries or ()), *(vanishing.queries or ())])) or None
    session.delete(vanishing)
    session.flush()
    take_if_better(session, survivor, better, session.get_one(CaseRow, better.case_id).source)
    if survivor.duplicate_of_id == key:
        survivor.duplicate_of_id, survivor.status = None, OPEN


def _remember(session: Session, finding: FindingRow) -> None:
    session.add(FormerNameRow(finding_id=finding.id, signature=finding.signature, merged_id=None))


def _signature(reproducer: ReproducerRow) -> str | None:
    report = reproducer.report or {}
    signature = report.get("signature")
    return signature if isinstance(signature, str) and signature and report.get("is_bug") else None


def in_short(culprit: object) -> dict[str, object] | None:
    """A culprit without its details, which are most of it and which lists do not show."""
    return {key: value for key, value in culprit.items() if key != "details"} if isinstance(culprit, dict) else None
