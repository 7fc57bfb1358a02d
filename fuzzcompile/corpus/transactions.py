"""What one transaction writes. Every function here runs inside the caller's session.

Rows are looked up before they are inserted; the write lock, held since the transaction began,
keeps another process from inserting the same in between.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus import merge
from fuzzcompile.corpus.machines import make_claim
from fuzzcompile.corpus.merge import find_finding, keep_name
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
    Coverage,
    Reproducer,
    Status,
    StoredReport,
    StoredReproducer,
    identify_compiler,
)
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.signatures import name_by_case

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def plain(value: Mapping[str, object]) -> dict[str, object]:
    """A copy made of JSON's own types.

    Raises:
        ValueError: it holds a NaN or an infinity, which JSON does not have.
    """
    return cast("dict[str, object]", json.loads(json.dumps(dict(value), allow_nan=False)))


def put_environment(session: Session, environment: Mapping[str, object]) -> int:
    """Return the row of an environment, which is the same for the same content."""
    details = plain(environment)
    if not details.get("torch"):
        raise ValueError("an environment must name its torch")
    sha256 = hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()
    row = session.scalar(select(EnvironmentRow).where(EnvironmentRow.sha256 == sha256))
    if row is None:
        row = EnvironmentRow(sha256=sha256, details=details)
        for name in ("torch", "device", "driver", "compiler", "cpu"):
            value = details.get(name)
            setattr(row, name, value if value is None or isinstance(value, str) else json.dumps(value))
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
    row.source = row.source or case.source  # it had been dropped (`fuzzcompile.corpus.maintenance`)
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
) -> StoredReport:
    """Store a judged case (`fuzzcompile.corpus.store.Store.record`).

    A run that comes from another corpus was ``created`` there, and hit a finding of that ``signature``; with
    ``imported``, its case is not trusted.
    """
    if not isinstance(report.get("verdict"), str):
        raise ValueError("a report needs a verdict")
    if report.get("is_bug") and not report.get("signature"):
        raise ValueError("a bug needs a signature: supply one, of the error or of the stage")
    known = None if token is None else session.scalar(select(RunRow).where(RunRow.token == token))
    if known is not None:
        earlier = select(RunRow.id).where(RunRow.finding_id == known.finding_id, RunRow.id < known.id).limit(1)
        is_new = known.finding_id is not None and session.scalar(earlier) is None
        return StoredReport(known.case_id, known.id, known.finding_id, is_new)
    case_row = put_case(session, case, imported=imported)
    cost = report.get("cost") or {}
    run = RunRow(
        token=make_claim() if imported and not case_row.imported else token,
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
    is_new = run.is_bug and _count_finding(session, run, signature or str(report["signature"]), case_row)
    _count_coverage(session, identify_compiler(environment), case_row.id, coverage)
    return StoredReport(case_row.id, run.id, run.finding_id, is_new)


def put_reproducer(
    session: Session, finding_id: int, reproducer: Reproducer, replaces: str | None = None, *, imported: bool = False
) -> StoredReproducer:
    """Store a reproducer (`Store.add_reproducer`); an ``imported`` one changes nothing of one that is trusted."""
    finding = session.get_one(FindingRow, finding_id)
    row = _reproducer(session, finding_id, reproducer.sha256)
    if imported and row is not None and not row.imported:
        return StoredReproducer(finding.id, finding.signature)
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
    if merge.belongs_apart(session, finding, row) and not anew:
        finding, is_new = merge.move_apart(session, finding, row)
    finding, merged = merge.settle(session, finding, row, anew=anew)
    merge.choose(session, finding)
    return StoredReproducer(finding.id, finding.signature, merged, is_new)


def _reproducer(session: Session, finding_id: int, sha256: str) -> ReproducerRow | None:
    of_script = (ReproducerRow.finding_id == finding_id, ReproducerRow.sha256 == sha256)
    return session.scalar(select(ReproducerRow).where(*of_script))


def _count_finding(session: Session, run: RunRow, signature: str, case: CaseRow) -> bool:
    """Count the run as a hit of its finding; whether the finding is new.

    A new one whose name another error has, with which it has nothing in common, is named by its case until it is
    minimized.
    """
    row = find_finding(session, signature, cast("ReportJson", run.report))
    if row is None and merge.find_named(session, signature) is not None:
        signature = name_by_case(signature, case.sha256)
        row = merge.find_named(session, signature)
    is_new = row is None
    if row is None:
        row = merge.new_finding(session, signature, run)
    else:
        keep_name(session, row, signature)
    row.hits += 1
    row.first_seen, row.last_seen = min(row.first_seen, run.created), max(row.last_seen, run.created)
    run.finding_id = row.id
    if merge.take_if_better(session, row, run, case.source):
        merge.choose(session, row)
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


# Campaigns at once: each judges a part of its stream that no other one judges.

# Place n of part p is ``p * PLACES + n``: no campaign comes to the end of a part.
PLACES = 2**40
# A campaign says that it lives every five seconds.
SILENT = timedelta(minutes=3)
# Among a campaign's settings: the process that runs it.
PROCESS = "process"


def find_part(place: int) -> int:
    """The part of a stream in which a place lies."""
    return place // PLACES


def living(session: Session, moment: datetime) -> list[CampaignRow]:
    """The campaigns that run, as far as the corpus can tell, but for those of this process."""
    running = select(CampaignRow).where(CampaignRow.ended.is_(None), CampaignRow.last_heard >= moment - SILENT)
    return [row for row in session.scalars(running) if not _is_gone(str(row.settings.get(PROCESS)))]


def present(session: Session) -> datetime:
    """The present: a server's own, where the clocks of several machines may differ."""
    is_server = session.get_bind().dialect.name == "postgresql"
    moment = session.scalar(select(func.clock_timestamp())) if is_server else None
    return moment or now()


@functools.cache
def _machine() -> str:
    """The machine or container since it was started: only there, process ids mean something."""
    try:
        since, space = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{since}{space}".encode()).hexdigest()[:12]


def this_process() -> str:
    """What tells the process from others of its machine, earlier and later, and from those of other machines."""
    return f"{_machine()}:{os.getpid()}:{_begun(os.getpid())}"


def _begun(process: int) -> str:
    """When a process began, in the system's ticks; empty for one that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _is_gone(process: str) -> bool:
    """Whether a process is known to run no campaign any more: it ended, or it is this one, which begins another."""
    machine, _, rest = process.partition(":")
    number, _, begun = rest.partition(":")
    if not machine or machine != _machine():
        return False
    return process == this_process() or _begun(int(number)) != begun


def free_part(session: Session, settings: Mapping[str, object], moment: datetime, *, besides: int = 0) -> int:
    """The first part of a stream that no other living campaign holds."""
    held = held_parts(session, settings, moment, besides=besides)
    return next(part for part in itertools.count() if part not in held)


def held_parts(session: Session, settings: Mapping[str, object], moment: datetime, *, besides: int = 0) -> set[int]:
    """The parts of a stream that other living campaigns hold."""
    stream = settings.get("stream")
    return {row.part for row in living(session, moment) if row.settings.get("stream") == stream and row.id != besides}


# What a person says of a finding or of a group of them: kept through hits, merges, exports and imports.

# The project whose issues ``#123`` means.
PROJECT: Final = "pytorch/pytorch"
_SHORT = re.compile(r"(?P<project>[\w.-]+/[\w.-]+)?#(?P<number>\d+)")
_LINK = re.compile(r"https?://[^\s/]+/\S+")


@dataclass(frozen=True)
class Mark:
    """What is said: a status, the issue of a ``known`` one, the finding of which it is a ``dup``, a note.

    Without an issue or a note of its own, a mark keeps those of an earlier one; ``open`` keeps the note alone.
    """

    status: Status
    issue: str | None = None
    duplicate_of: str | None = None
    note: str | None = None


def issue_url(text: str) -> str:
    """The URL of an issue named as ``#123``, ``owner/repository#123`` or a URL."""
    short = _SHORT.fullmatch(text)
    if short is not None:
        return f"https://github.com/{short['project'] or PROJECT}/issues/{short['number']}"
    if _LINK.fullmatch(text):
        return text
    raise UsageError(f"{text!r} is no issue: give #123 (of {PROJECT}), owner/repository#123, or a URL.")


def get_status(text: str) -> Status:
    """The status of that name."""
    if text not in get_args(Status):
        raise UsageError(f"{text!r} is no status: give one of {', '.join(get_args(Status))}.")
    return cast("Status", text)
