"""Takes findings into a corpus: exports (`fuzzcompile.corpus.export`), from folders or from a zip of them.

Nothing that is imported is executed; its sources are marked (`fuzzcompile.corpus.queries`). What comes twice changes
nothing: the hits of a finding are the greater of both numbers, and what a person said in this corpus stands.
"""

from __future__ import annotations

import hashlib
import json
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from fuzzcompile.corpus import merge, transactions
from fuzzcompile.corpus.export import REPORT_FILE, SCHEMA, SOURCE_FILES
from fuzzcompile.corpus.merge import best_report, find_finding
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
from fuzzcompile.corpus.queries import describe_finding, make_record, reproducer_record
from fuzzcompile.corpus.records import CaseRecord, Reproducer, public_id
from fuzzcompile.model.contract import ReportMalformed, check_report
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.severity import rate_severity
from fuzzcompile.model.signatures import agree, drop_fingerprint, hash_source, name_by_case

if TYPE_CHECKING:
    from fuzzcompile.model.contract import ReportJson


# Of a download, and of each file of an export, in a folder or a zip: a finding has some hundred kilobytes.
MOST_BYTES = 64 * 2**20
# Of all exports of a folder or a zip together, before any is read: some thousand findings.
MOST_TOTAL = 2 * 2**30
MOST_FILES = 20_000
_FILES = (REPORT_FILE, *SOURCE_FILES)


@dataclass(frozen=True)
class Export:
    """The files of one exported finding; ``name`` is where they lie, ``unfit`` why they are not read."""

    name: str
    files: Mapping[str, bytes]
    unfit: str = ""


# The signature of a finding where it comes from, and that of the finding of which it is a duplicate.
Duplicate: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class Arrived:
    """Result of importing a finding: ``finding`` is its public id here, ``why`` a reason or a remark.

    It is "new", "known" (something of it may have been new), or it was "refused".
    """

    name: str
    how: Literal["new", "known", "refused"]
    finding: str | None = None
    why: str = ""
    merged: tuple[str, ...] = ()


def describe_excess(name: str) -> str:
    """Return the beginning of the sentence on a file that is too large to import."""
    return f"{name} has more than {MOST_BYTES >> 20} MiB"


def exports_in_folder(folder: Path, name: str) -> Iterator[Export]:
    """Every export in a folder or below it, in the order of their paths; symbolic links are not followed.

    Raises:
        UsageError: they are too many or too large together; the message calls the folder ``name``.
    """
    places = [path.parent for path in sorted(folder.rglob(REPORT_FILE))]
    files = (place / file for place in places for file in _FILES)
    _check_total(name, (size for file in files if (size := _measure(file)) is not None))
    return (_read_export(place, _read_file) for place in places)


def exports_in_zip(archive: zipfile.ZipFile, name: str) -> Iterator[Export]:
    """Every export in an archive, in the order of their paths; nothing is unpacked onto the disk.

    Raises:
        UsageError: they are too many or too large together; the message calls the archive ``name``.
    """
    members = {info.filename: info for info in archive.infolist()}
    places = [path.parent for path in map(PurePosixPath, sorted(members)) if path.name == REPORT_FILE]
    files = (members.get(str(place / file)) for place in places for file in _FILES)
    _check_total(name, (info.file_size for info in files if info is not None))
    return (_read_export(place, lambda file: _read_member(archive, members.get(str(file)))) for place in places)


def _measure(path: Path) -> int | None:
    """The size of a file, or of a link itself; None where there is none that can be read."""
    try:
        return path.lstat().st_size
    except OSError:
        return None


def _check_total(name: str, sizes: Iterable[int]) -> None:
    """Refuse exports whose files are too many or too large together; one that is too large alone is not read."""
    total = 0
    for number, size in enumerate(sizes, 1):
        total += size if size <= MOST_BYTES else 0
        excess = f"{MOST_FILES:,} files" if number > MOST_FILES else f"{MOST_TOTAL >> 20:,} MiB"
        if number > MOST_FILES or total > MOST_TOTAL:
            raise UsageError(f"The exports in {name} have more than {excess} together: import them in several parts.")


class _Unfit(Exception):
    """A file of an export is not to be read: the message says why, and what to do."""


AnyPath = TypeVar("AnyPath", bound=PurePath)


def _read_export(place: AnyPath, read: Callable[[AnyPath], bytes | None]) -> Export:
    try:
        found = {file: read(place / file) for file in _FILES}
    except _Unfit as error:
        return Export(str(place), {}, str(error))
    return Export(str(place), {file: data for file, data in found.items() if data is not None})


def _read_file(path: Path) -> bytes | None:
    """Read a file of an export; None where it has none of that name.

    A link could name any file that the user can read: the corpus would show its content, and pass it on with exports.
    """
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise _Unfit(f"{path.name} is a symbolic link: put the file itself in its place")
        _check_size(path.name, found.st_size)
        return path.read_bytes() if stat.S_ISREG(found.st_mode) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _Unfit(f"{path.name} cannot be read ({error.strerror}): check its permissions") from error


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo | None) -> bytes | None:
    if info is None:
        return None
    name = PurePosixPath(info.filename).name
    _check_size(name, info.file_size)
    try:
        return archive.read(info)
    except (zipfile.BadZipFile, zlib.error, RuntimeError) as error:  # damaged, encrypted, or packed in an unknown way
        raise _Unfit(f"{name} cannot be unpacked ({error}): make the archive again") from error


def _check_size(name: str, size: int) -> None:
    if size > MOST_BYTES:
        raise _Unfit(f"{describe_excess(name)}: export the finding again")


def put_export(session: Session, export: Export, *, trusted: bool) -> tuple[Arrived, Duplicate]:
    """Store one export; unless ``trusted``, the sources of it that are not here yet are marked.

    Raises:
        ValueError: it is none, or lacks what a finding needs; the message says what.
    """
    if export.unfit:
        raise ValueError(export.unfit)
    try:
        told: dict[str, Any] = json.loads(export.files[REPORT_FILE])
        if told.get("schema", SCHEMA) > SCHEMA:
            raise ValueError(
                f"a newer fuzzcompile wrote it (schema {told['schema']}, this one reads {SCHEMA}): update it"
            )
        sources = {
            name: data.decode(errors="surrogatepass") for name, data in export.files.items() if name in SOURCE_FILES
        }
        signature = str(told["signature"])
        severity = rate_severity(report) if (report := check_report(told["report"]))["is_bug"] else None
        if not signature or severity is None:
            raise ValueError("its report shows no bug")
        known, signature = _known(session, signature, hash_source(sources["case.py"]), severity)
        before = 0 if known is None else known.hits
        finding_id = _put_case(session, told, sources["case.py"], known, signature, trusted=trusted)
        put_facts(session, finding_id, told, before)
        gone: tuple[int, ...] = ()
        if "repro.py" in sources and told.get("reproducer"):
            script = told["reproducer"]
            reproducer = Reproducer(
                source=sources["repro.py"],
                sha256=hash_source(sources["repro.py"]),
                lines=int(script["lines"]),
                kind=str(script["kind"]),
                confirmed=script["confirmed"] is True,
                torch=str(script["torch"]),
                neighbour=sources.get("neighbour.py"),
                case_sha256=hash_source(sources["case.py"]),
                **{name: script.get(name) for name in ("report", "program", "shown", "environment")},
            )
            kept = transactions.put_reproducer(session, finding_id, reproducer, imported=not trusted)
            finding_id, gone = kept.finding_id, kept.merged
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]}") from error
    except UsageError as error:
        raise ValueError(str(error)) from error
    except (
        TypeError,
        AttributeError,
        RecursionError,
        UnicodeDecodeError,
        json.JSONDecodeError,
        ReportMalformed,
    ) as error:
        raise ValueError(f"its {REPORT_FILE} is not one that fuzzcompile wrote ({error})") from error
    how: Literal["new", "known"] = "new" if known is None else "known"
    arrived = Arrived(export.name, how, public_id(finding_id), _changed(told, export), tuple(map(public_id, gone)))
    return arrived, (str(told["signature"]), told.get("duplicate_of"))


def settle_duplicates(session: Session, duplicates: Iterable[Duplicate]) -> None:
    """Link imported duplicates to their originals, which may have come after them."""
    for signature, original in duplicates:
        row = find_finding(session, signature)
        if original and row is not None and row.status == "dup" and row.duplicate_of_id is None:
            found = find_finding(session, original)
            row.duplicate_of_id = None if found is None or found.id == row.id else found.id


def put_facts(session: Session, finding_id: int, told: Mapping[str, Any], before: int) -> None:
    """Add what ``finding.json`` tells of a finding beside its programs; ``before`` are the hits that it had here.

    An export of an older version tells less.
    """
    row = session.get_one(FindingRow, finding_id)
    row.hits = max(before, 1, int(told.get("hits") or 1))
    row.first_seen = min(filter(None, (row.first_seen, _time(told.get("first_seen")))))
    row.last_seen = max(filter(None, (row.last_seen, _time(told.get("last_seen")))))
    row.searched = max(filter(None, (row.searched, _time(told.get("searched")))), default=None)
    row.queries = list(dict.fromkeys([*(row.queries or ()), *map(str, told.get("queries") or ())])) or None
    status, note = transactions.get_status(str(told.get("status") or merge.OPEN)), told.get("note")
    if row.status == merge.OPEN and (status != merge.OPEN or note is not None):
        row.status, row.issue, row.note = status, told.get("issue") or row.issue, note or row.note
    group = told.get("umbrella_mark")
    if group and session.get(Umbrella, group["name"]) is None:
        session.add(Umbrella(**group))
    urls = set(session.scalars(select(Related.url).where(Related.finding_id == row.id)))
    for link in told.get("related") or ():
        found = Related(**link)
        found.finding_id = row.id
        if found.url not in urls:
            session.add(found)
    made = set(session.scalars(select(Replay.created).where(Replay.finding_id == row.id)))
    for given in told.get("replays") or ():
        created = _time(given["created"])
        replay = Replay(**{name: value for name, value in given.items() if name != "created"})
        replay.runs = list(replay.runs)
        if created is not None and created not in made:
            replay.finding_id, replay.created = row.id, created
            session.add(replay)
    names = set(session.scalars(select(FormerNameRow.signature).where(FormerNameRow.finding_id == row.id)))
    for name in set(map(str, told.get("names") or ())) - names - {row.signature}:
        session.add(FormerNameRow(finding_id=row.id, signature=name, merged_id=None))
    session.flush()


def _known(session: Session, signature: str, case: str, own: str | None) -> tuple[FindingRow | None, str]:
    """The finding of an export, None for a new one, and the signature to give to that.

    Before signatures named a cause, two bugs of one place could have the same one. An export that shows another kind of
    symptom than the finding of its place is therefore kept apart until it has been judged anew.
    """
    of_case = select(RunRow.finding_id).join(CaseRow, RunRow.case_id == CaseRow.id).where(CaseRow.sha256 == case)
    for row in session.scalars(select(FindingRow).where(FindingRow.id.in_(of_case)).order_by(FindingRow.id)):
        if agree(row.signature, signature):
            return row, signature
    known = find_finding(session, signature)
    if known is None or known.severity == own or drop_fingerprint(signature) != signature:
        return known, signature
    apart = name_by_case(signature, case)
    return (known, signature) if apart == signature else (find_finding(session, apart), apart)


def _put_case(
    session: Session, told: Mapping[str, Any], source: str, known: FindingRow | None, signature: str, *, trusted: bool
) -> int:
    """Store the exported case as a run of its finding, unless it is there; the finding's id."""
    listed = told.get("features")
    features = tuple(map(str, listed)) if isinstance(listed, list) else ()
    case = CaseRecord(hash_source(source), source, "import", features=features)
    if known is not None:
        of_case = select(RunRow.id).join(CaseRow, RunRow.case_id == CaseRow.id).where(CaseRow.sha256 == case.sha256)
        if session.scalar(of_case.where(RunRow.finding_id == known.id).limit(1)) is not None:
            return known.id
    report = told["report"]
    environment = told.get("environment") or {"torch": report["torch"], "device": report["device"]}
    created = _time(told.get("last_seen"))
    stored = transactions.put_run(
        session, None, case, environment, report, (), created=created, signature=signature, imported=not trusted
    )
    return cast(int, stored.finding_id)


def _changed(told: Mapping[str, Any], export: Export) -> str:
    """List the files that were changed by hand since the export: they are imported as they are now."""
    written = told.get("files")
    hashes = written if isinstance(written, dict) else {}
    changed = [
        name
        for name in SOURCE_FILES
        if name in hashes and name in export.files and hashlib.sha256(export.files[name]).hexdigest() != hashes[name]
    ]
    return f"{' and '.join(changed)} changed since the export" if changed else ""


def _time(text: object) -> datetime | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(str(text))
    if moment.tzinfo is None:
        raise ValueError(f"the time {text} has no zone")
    return moment


# Takes another corpus into this one: its campaigns, judged cases, findings and coverage.

CHUNK = 200


@dataclass
class Copied:
    """Progress of a copy: the number of new ``runs``, and the ids here of environments and campaigns there."""

    trusted: bool
    runs: int = 0
    environments: dict[int, int] = field(default_factory=dict)
    campaigns: dict[int, int] = field(default_factory=dict)


def put_campaigns(session: Session, other: Session, copied: Copied) -> None:
    """Store the other corpus's environments and campaigns."""
    for environment in other.scalars(select(EnvironmentRow)):
        copied.environments[environment.id] = transactions.put_environment(session, environment.details)
    for row in other.scalars(select(CampaignRow).order_by(CampaignRow.id)):
        same = (CampaignRow.started == row.started, CampaignRow.seed == row.seed, CampaignRow.command == row.command)
        known = session.scalar(select(CampaignRow).where(*same))
        if known is None:
            known = CampaignRow(**row.to_dict("id", "environment_id", "token"))
            known.environment_id = copied.environments[row.environment_id]
            known.ended = row.ended or "imported"  # it does not run here, and holds no part of a stream
            if not copied.trusted:
                known.counters = {name: value for name, value in row.counters.items() if name != "left_over"}
            session.add(known)
            session.flush()
        copied.campaigns[row.id] = known.id


def runs_after(other: Session, last: int) -> Sequence[tuple[RunRow, CaseRow, str | None]]:
    """The next runs of the other corpus, each with its case and the signature of its finding."""
    query = (
        select(RunRow, CaseRow, FindingRow.signature)
        .join(CaseRow, RunRow.case_id == CaseRow.id)
        .outerjoin(FindingRow, RunRow.finding_id == FindingRow.id)
        .where(RunRow.id > last)
        .order_by(RunRow.id)
        .limit(CHUNK)
    )
    return [(run, case, signature) for run, case, signature in other.execute(query)]


def put_copies(session: Session, runs: Sequence[tuple[RunRow, CaseRow, str | None]], copied: Copied) -> Copied:
    """Store runs of another corpus, as far as they are not there; return what has come with them."""
    now = replace(copied)  # what an outage undoes is done again, and counted once
    for run, case, signature in runs:
        # A case passes for one that is here by its hash: that of what it holds, whatever the other corpus says.
        sha256 = hash_source(case.source) if case.source else case.sha256
        environment = session.get_one(EnvironmentRow, now.environments[run.environment_id])
        same = (RunRow.environment_id == environment.id, RunRow.created == run.created)
        key = session.scalar(select(CaseRow.id).where(CaseRow.sha256 == sha256))
        if key and session.scalar(select(RunRow.id).where(RunRow.case_id == key, *same).limit(1)) is not None:
            continue
        record = make_record(CaseRecord, case, sha256=sha256, stream=run.stream, index=run.stream_index)
        campaign = None if run.campaign_id is None else now.campaigns[run.campaign_id]
        transactions.put_run(
            session, campaign, record, environment.details, cast("ReportJson", run.report), (),
            screened=run.screened, created=run.created, signature=signature, imported=not now.trusted,
        )  # fmt: skip
        now.runs += 1
    return now


def put_finding(
    session: Session, other: Session, row: FindingRow, before: Collection[str], *, trusted: bool
) -> tuple[Arrived, Duplicate]:
    """Add what the other corpus knows of a finding whose runs have been copied; it is known if it was here ``before``.

    Raises:
        ValueError: none of its runs is here.
    """
    report = best_report(other, row)
    known = find_finding(session, row.signature, report)
    if known is None:
        raise ValueError("it has no runs")
    told = describe_finding(other, row)
    put_facts(session, known.id, told, known.hits)
    finding_id, merged = known.id, list[int]()
    for reproducer in other.scalars(select(ReproducerRow).where(ReproducerRow.finding_id == row.id)):
        record = reproducer_record(other, reproducer)
        record = replace(record, sha256=hash_source(record.source))
        kept = transactions.put_reproducer(session, finding_id, record, imported=not trusted)
        merged += kept.merged
    left = find_finding(session, row.signature, report)
    finding, gone = public_id(known.id if left is None else left.id), tuple(map(public_id, merged))
    how: Literal["new", "known"] = "known" if finding in before else "new"
    arrived = Arrived(f"{public_id(row.id)} {row.signature}", how, finding, merged=gone)
    return arrived, (row.signature, cast("str | None", told["duplicate_of"]))


def put_coverage_and_groups(session: Session, other: Session) -> None:
    """Add what the other corpus reached (a count that both have is the greater), and marks of groups that lack one."""
    identity = ("torch", "stage", "pass_name", "rewrite", "outcome")
    known = {tuple(getattr(row, name) for name in identity): row for row in session.scalars(select(CoverageRow))}
    first = select(CoverageRow, CaseRow.sha256).join(CaseRow, CoverageRow.first_case_id == CaseRow.id)
    for row, sha256 in other.execute(first):
        have = known.get(tuple(getattr(row, name) for name in identity))
        if have is not None:
            have.count = max(have.count, row.count)
            continue
        case = session.scalar(select(CaseRow.id).where(CaseRow.sha256 == sha256))
        if case is not None:
            session.add(CoverageRow(**row.to_dict("id", "first_case_id"), first_case_id=case))
    for group in other.scalars(select(Umbrella)):
        if session.get(Umbrella, group.name) is None:
            session.add(replace(group))
