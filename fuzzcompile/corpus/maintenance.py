"""The schema of a corpus, its size, and the texts that can be dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Select,
    Text,
    cast,
    column,
    delete,
    func,
    inspect,
    literal,
    or_,
    select,
    table,
    update,
)
from sqlalchemy.orm import QueryableAttribute, Session

from fuzzcompile.corpus.connection import connect, explained_errors
from fuzzcompile.corpus.databases import size, writing
from fuzzcompile.corpus.location import describe
from fuzzcompile.corpus.models import (
    CampaignRow,
    CaseRow,
    CoverageRow,
    EnvironmentRow,
    FindingRow,
    Replay,
    ReproducerRow,
    RunRow,
    fresh_tables,
)
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.signatures import parse_stage
from fuzzcompile.model.versions import __version__

if TYPE_CHECKING:
    from alembic.config import Config


# Brings a database to the schema of this version, or says why it cannot.

# Alembic takes as long to import as a list of findings takes to print: only what changes a schema imports it.

# The newest revision in migrations/versions.
HEAD = "0004"
# Not Alembic's default name, to distinguish a corpus from another program's database.
VERSION_TABLE = "fuzzcompile_schema"


# In place of the revision, with a word on the source: a copy that is not complete (`fuzzcompile.corpus.transfer`).
COPYING = "copying:"


def bring_up_to_date(engine: Engine, *, create: bool) -> None:
    """Create or upgrade the schema where needed; a current one is only read."""
    with explained_errors(engine.url):
        with engine.connect() as connection:
            tables = set(inspect(connection).get_table_names())
            revision = read_revision(connection)
        if revision == HEAD:
            return
        _refuse_unusable(engine.url, revision, bool(tables - {VERSION_TABLE}), create)

        from alembic import command

        # Two processes may get here together: the second waits for the lock, then finds nothing left to do.
        with _migrating(engine.url) as connection:
            config = configuration(connection)
            if read_revision(connection) is None:
                fresh_tables().create_all(connection)
                command.stamp(config, "head")
            else:
                command.upgrade(config, "head")


@contextmanager
def _migrating(url: URL) -> Iterator[Connection]:
    engine = connect(url, migrating=True)
    try:
        with writing(engine).begin() as connection:
            yield connection
    finally:
        engine.dispose()


def read_state(bind: Engine | Connection) -> str | None:
    """Read the schema's table: a revision, or that a copy is under way; None for an empty database."""
    if isinstance(bind, Engine):
        with bind.connect() as connection:
            return read_state(connection)
    revision = read_revision(bind)
    if revision is None and set(inspect(bind).get_table_names()) - {VERSION_TABLE}:
        raise _foreign(describe(bind.engine.url))
    return revision


def make_anew(url: URL, state: str) -> None:
    """Make the tables of a corpus, without what may be in them, with ``state`` in place of a revision."""
    from alembic import command

    with _migrating(url) as connection:
        fresh_tables().drop_all(connection)
        fresh_tables().create_all(connection)
        command.stamp(configuration(connection), "head", purge=True)
        restamp(connection, state)


def restamp(connection: Connection, state: str) -> None:
    """Let the schema's table say this."""
    connection.execute(update(table(VERSION_TABLE, column("version_num"))).values(version_num=state))


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file: the migrations are found inside the package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "fuzzcompile.corpus:migrations")
    config.set_main_option("file_template", "r%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def read_revision(connection: Connection) -> str | None:
    """The schema's revision, or None where there is none yet."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    stamped: str | None = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
    return stamped


def _refuse_unusable(url: URL, revision: str | None, has_tables: bool, create: bool) -> None:
    from alembic.script import ScriptDirectory

    corpus, scripts = describe(url), ScriptDirectory.from_config(configuration())
    if revision is None and has_tables:
        raise _foreign(corpus)
    if revision is not None and revision.startswith(COPYING):
        finish = format_command("corpus", "import", "FROM", whole=True, corpus=corpus)
        raise CorpusError(f"{corpus} is being copied into: finish it with `{finish}`, or name another with --corpus.")
    if revision is None and not create:
        fill = format_command("run", corpus=corpus)
        raise CorpusError(f"{corpus} holds no corpus yet: fill it with `{fill}`, or name yours with --corpus.")
    known = {script.revision for script in scripts.walk_revisions()}
    if revision is not None and revision not in known:
        age = "an older" if revision < min(known) else "a newer"
        remedy = "start a new one, with another name for --corpus"
        if age == "a newer":
            remedy = "update fuzzcompile, or name another with --corpus"
        raise CorpusError(
            f"The corpus {corpus} was written by {age} fuzzcompile (schema {revision}, this is {__version__}): "
            f"{remedy}."
        )


def _foreign(corpus: str) -> CorpusError:
    return CorpusError(f"{corpus} is another program's database: name another with --corpus.")


# What is left of the report of a run whose case was dropped.
DROPPED: dict[str, object] = {}
_CHUNK = 500


@dataclass(frozen=True)
class Stats:
    """Contents of a corpus. ``bytes`` are sizes: of the file (of the tables, on a server), and of texts in it."""

    cases: int
    runs: int
    verdicts: dict[str, int]
    findings: int
    by_severity: dict[str, int]
    by_status: dict[str, int]
    by_stage: dict[str, int]
    campaigns: int
    reproducers: int
    replays: int
    environments: int
    bytes: dict[str, int]


@dataclass(frozen=True)
class Freed:
    """Texts that were dropped, or would be; ``bytes`` is their size.

    ``cases`` went with their ``runs``; ``emptied`` are those of which the place in a stream and the verdict are left.
    """

    runs: int
    cases: int
    emptied: int
    environments: int
    bytes: int


def stats(session: Session) -> Stats:
    """Count everything."""
    verdicts = select(RunRow.verdict, func.count()).group_by(RunRow.verdict).order_by(func.count().desc())
    rows = session.execute(select(FindingRow.severity, FindingRow.status, FindingRow.signature)).all()
    severities = Counter(row.severity or "unknown" for row in rows)
    counted = dict(session.execute(verdicts).all())
    return Stats(
        cases=_number(session, CaseRow.id),
        runs=sum(counted.values()),
        verdicts=counted,
        findings=len(rows),
        by_severity={word: severities[word] for word in (*map(str, Severity), "unknown") if severities[word]},
        by_status=dict(Counter(row.status for row in rows).most_common()),
        by_stage=dict(Counter(parse_stage(row.signature) for row in rows).most_common()),
        campaigns=_number(session, CampaignRow.id),
        reproducers=_number(session, ReproducerRow.id),
        replays=_number(session, Replay.id),
        environments=_number(session, EnvironmentRow.id),
        bytes={
            "file": size(session.connection()),
            "cases": session.scalar(select(func.sum(func.length(CaseRow.source)))) or 0,
            "reports": session.scalar(select(func.sum(func.length(cast(RunRow.report, Text))))) or 0,
        },
    )


def collect(session: Session, before: datetime, *, dry: bool) -> Freed:
    """Drop what clean cases that were last judged before a moment hold; with ``dry``, only count it.

    A case stays whole that ever showed a bug, that a finding or a reproducer refers to, or that was the first to reach
    something (from these a campaign draws anew). Of the others, what belongs to a stream of cases leaves its place and
    its verdict, so that a campaign resumes behind it; the rest goes.
    """
    placed = set(session.scalars(select(RunRow.case_id).distinct().where(RunRow.stream.is_not(None))))
    clean = list(session.scalars(_clean(before)))
    emptied = [key for key in clean if key in placed]
    loose = [key for key in clean if key not in placed]
    full = list(_chunks(session, emptied, CaseRow.source != ""))
    freed = sum(_texts(session, chunk) for chunk in (*full, *_chunks(session, loose)))
    runs = sum(_number(session, RunRow.id, RunRow.case_id.in_(chunk)) for chunk in _chunks(session, loose))
    if not dry:
        for chunk in full:
            session.execute(update(RunRow).where(RunRow.case_id.in_(chunk)).values(report=DROPPED))
            session.execute(update(CaseRow).where(CaseRow.id.in_(chunk)).values(source="", spec=None, choices=None))
        for chunk in _chunks(session, loose):
            session.execute(delete(RunRow).where(RunRow.case_id.in_(chunk)))
            session.execute(delete(CaseRow).where(CaseRow.id.in_(chunk)))
    users = (RunRow.environment_id, CampaignRow.environment_id, ReproducerRow.environment_id)
    kept = (EnvironmentRow.id.not_in(select(user).where(user.is_not(None))) for user in users)
    unused = list(session.scalars(select(EnvironmentRow.id).where(*kept)))
    if not dry:
        session.execute(delete(EnvironmentRow).where(EnvironmentRow.id.in_(unused)))
    return Freed(runs, len(loose), sum(map(len, full)), len(unused), freed)


def _clean(before: datetime) -> Select[int]:
    needed = (
        select(RunRow.case_id).where(or_(RunRow.is_bug, RunRow.finding_id.is_not(None))),
        select(CoverageRow.first_case_id),
        select(FindingRow.case_id).where(FindingRow.case_id.is_not(None)),
        select(ReproducerRow.case_id).where(ReproducerRow.case_id.is_not(None)),
    )
    old = select(RunRow.case_id).group_by(RunRow.case_id).having(func.max(RunRow.created) < before)
    return select(CaseRow.id).where(CaseRow.id.in_(old), *(CaseRow.id.not_in(query) for query in needed))


def _chunks(session: Session, keys: Sequence[int], *conditions: ColumnElement[bool]) -> Iterator[list[int]]:
    for start in range(0, len(keys), _CHUNK):
        chosen = CaseRow.id.in_(keys[start : start + _CHUNK])
        if chunk := list(session.scalars(select(CaseRow.id).where(chosen, *conditions))):
            yield chunk


def _texts(session: Session, cases: Sequence[int]) -> int:
    columns = (CaseRow.source, CaseRow.choices, cast(CaseRow.spec, Text))
    sizes = sum((func.coalesce(func.length(column), 0) for column in columns), literal(0))
    of_cases = session.scalar(select(func.sum(sizes)).where(CaseRow.id.in_(cases)))
    reports = select(func.sum(func.length(cast(RunRow.report, Text)))).where(RunRow.case_id.in_(cases))
    return int(of_cases or 0) + int(session.scalar(reports) or 0)


def _number(session: Session, column: QueryableAttribute[int], *conditions: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count(column)).where(*conditions)) or 0
