"""The tables of a corpus. A change here needs a revision in ``migrations/versions``."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, relationship
from sqlalchemy.types import TypeEngine


class UtcDateTime(TypeDecorator[datetime]):
    """A time with zone UTC, even where the database (SQLite) has no zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without zone, which would be stored as if it were UTC."""
        if value is not None and value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# What PostgreSQL or UTF-8 cannot hold is stored as this mark and its number; so is the mark itself.
_MARK = "\U000f0000"
_ODD = re.compile(f"[\0\ud800-\udfff{_MARK}]")
_STORED = re.compile(f"{_MARK}([0-9a-f]{{6}})")


class AnyText(TypeDecorator[str]):
    """A text of any characters, NUL and undecodable ones among them; compared and ordered by its code points."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        """PostgreSQL would order texts, and look for their beginnings, by the rules of a language."""
        return dialect.type_descriptor(Text(collation="C" if dialect.name == "postgresql" else None))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Spell the characters that a database cannot hold."""
        return value and _ODD.sub(lambda odd: f"{_MARK}{ord(odd[0]):06x}", value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Give them back."""
        return value and _STORED.sub(lambda stored: chr(int(stored[1], 16)), value)


# On SQLite, a later migration can alter only constraints that have names.
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """The declarative base: names of constraints, and the SQL type of each Python type."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy's own spelling)
        # Without none_as_null a missing value would be stored as the text "null".
        dict[str, object]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
        datetime: UtcDateTime(),
        bytes: LargeBinary(),
        float: Float(),
        str: AnyText(),
    }

    def to_dict(self, *left_out: str) -> dict[str, object]:
        """The values of the columns, by name."""
        keys = (column.key for column in self.__table__.columns if column.key not in left_out)
        return {key: getattr(self, key) for key in keys}


class EnvironmentRow(Base):
    """A machine and its software, stored once by content."""

    __tablename__ = "environments"

    id: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    torch: Mapped[str]
    device: Mapped[str | None]
    driver: Mapped[str | None]
    compiler: Mapped[str | None]
    cpu: Mapped[str | None]
    details: Mapped[dict[str, object]]


class CampaignRow(Base):
    """One call of ``fuzzcompile run``; ``ended`` stays null when it was killed.

    ``part`` is the part of its stream that it judges: campaigns that run at once judge different ones. ``token`` tells
    a campaign that is stored again, because its database was lost in between, from another.
    """

    __tablename__ = "campaigns"

    id: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[str | None] = mapped_column(String(64), index=True, unique=True)
    part: Mapped[int] = mapped_column(server_default="0")
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    seed: Mapped[int] = mapped_column(BigInteger)
    settings: Mapped[dict[str, object]]
    command: Mapped[str]
    fuzzcompile_version: Mapped[str]
    counters: Mapped[dict[str, object]]
    started: Mapped[datetime]
    last_heard: Mapped[datetime]
    finished: Mapped[datetime | None]
    ended: Mapped[str | None] = mapped_column(String(32))
    _environment: Mapped[EnvironmentRow] = relationship(lazy="joined")

    @property
    def environment(self) -> dict[str, object]:
        """Where it was started."""
        return self._environment.details

    @property
    def end(self) -> datetime:
        """Time of the end; for a campaign that runs or was killed, its last heartbeat."""
        return self.finished or self.last_heard


class CaseRow(Base):
    """A program, stored once by the hash of its source; ``imported`` until someone here trusts it."""

    __tablename__ = "cases"

    id: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    source: Mapped[str]
    origin: Mapped[str] = mapped_column(String(32))
    spec: Mapped[dict[str, object] | None]
    choices: Mapped[bytes | None]
    idioms: Mapped[list[str]]
    near_misses: Mapped[list[str]]
    features: Mapped[list[str]] = mapped_column(server_default="[]")
    imported: Mapped[bool] = mapped_column(server_default=false())
    created: Mapped[datetime]


class FindingRow(Base):
    """One root cause; verdict, severity, confidence, culprit and evidence are those of the report that is shown.

    That is the report on its best reproducer if ``speaks_by_reproducer``, and else that on its best run. ``case_id`` is
    the case which that report is about or was reduced from; null where that is not known any more. ``culprit`` is the
    report's without its details.
    """

    __tablename__ = "findings"

    id: Mapped[int] = mapped_column(primary_key=True)
    signature: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str] = mapped_column(String(32))
    verdict: Mapped[str] = mapped_column(String(32))
    confidence: Mapped[str | None] = mapped_column(String(16))
    culprit: Mapped[dict[str, object] | None]
    evidence: Mapped[dict[str, object] | None]
    # A word of `fuzzcompile.model.severity.Severity`.
    severity: Mapped[str | None] = mapped_column(String(32), index=True)
    umbrella: Mapped[str | None] = mapped_column(String(64), index=True)
    # What a person said of it (`fuzzcompile corpus mark`), with ``status``.
    issue: Mapped[str | None]
    note: Mapped[str | None]
    duplicate_of_id: Mapped[int | None] = mapped_column(ForeignKey("findings.id"))
    # When reports on it were last searched for (RelatedRow), and with which queries.
    searched: Mapped[datetime | None]
    queries: Mapped[list[str] | None]
    hits: Mapped[int]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    # Null only inside the transaction that stores the first hit: runs refer to findings too.
    best_run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id", use_alter=True))
    best_reproducer_id: Mapped[int | None] = mapped_column(ForeignKey("reproducers.id", use_alter=True))
    speaks_by_reproducer: Mapped[bool] = mapped_column(server_default=false())
    case_id: Mapped[int | None] = mapped_column(ForeignKey("cases.id"))


class FormerNameRow(Base):
    """Former name of a finding: its signature then, and the id of one that was merged into it."""

    __tablename__ = "former_names"

    id: Mapped[int] = mapped_column(primary_key=True)
    finding_id: Mapped[int] = mapped_column(ForeignKey("findings.id"), index=True)
    signature: Mapped[str] = mapped_column(index=True)
    merged_id: Mapped[int | None] = mapped_column(unique=True)


class RunRow(Base):
    """A case judged once in one environment; ``screened`` if no code was generated for it.

    The place in a stream belongs to the run, not to the case: two places may draw the same source. ``token`` is that of
    the job that judged it, so that what is judged or stored again is stored once.
    """

    __tablename__ = "runs"
    # The second index alone answers which findings were hit in which environments.
    __table_args__ = (Index(None, "stream", "stream_index"), Index(None, "finding_id", "environment_id"))

    id: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[str | None] = mapped_column(String(64), index=True, unique=True)
    case_id: Mapped[int] = mapped_column(ForeignKey("cases.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    campaign_id: Mapped[int | None] = mapped_column(ForeignKey("campaigns.id"), index=True)
    finding_id: Mapped[int | None] = mapped_column(ForeignKey("findings.id"))
    stream: Mapped[str | None]
    stream_index: Mapped[int | None] = mapped_column(BigInteger)
    verdict: Mapped[str] = mapped_column(String(32), index=True)
    is_bug: Mapped[bool]
    screened: Mapped[bool] = mapped_column(server_default=false())
    seconds: Mapped[float | None]
    compiles: Mapped[int | None]
    report: Mapped[dict[str, object]]
    created: Mapped[datetime]


class ReproducerRow(Base):
    """A script that shows a finding without fuzzcompile (`fuzzcompile.corpus.records.Reproducer`).

    ``shown`` is a `fuzzcompile.model.contract.ShownJson`. ``imported`` as for a case.
    """

    __tablename__ = "reproducers"
    __table_args__ = (UniqueConstraint("finding_id", "sha256"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    finding_id: Mapped[int] = mapped_column(ForeignKey("findings.id"))
    case_id: Mapped[int | None] = mapped_column(ForeignKey("cases.id"), index=True)
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    sha256: Mapped[str] = mapped_column(String(64))
    source: Mapped[str]
    lines: Mapped[int]
    kind: Mapped[str] = mapped_column(String(32))
    confirmed: Mapped[bool]
    torch: Mapped[str]
    report: Mapped[dict[str, object] | None]
    neighbour: Mapped[str | None]
    program: Mapped[str | None] = mapped_column(String(64), index=True)
    shown: Mapped[dict[str, object] | None]
    imported: Mapped[bool] = mapped_column(server_default=false())
    created: Mapped[datetime]


class Replay(MappedAsDataclass, Base):
    """A reproducer run again under one torch.

    ``status`` is "failing", "fixed", "fails differently", "errored" or "flaky", judged on all ``runs`` of it, which are
    in the same words. ``output`` is the last run's that decided, without paths of this machine.
    """

    __tablename__ = "replays"

    id: Mapped[int] = mapped_column(primary_key=True, init=False, compare=False)
    finding_id: Mapped[int] = mapped_column(ForeignKey("findings.id"), index=True, init=False, compare=False)
    reproducer_sha256: Mapped[str] = mapped_column(String(64))
    torch: Mapped[str]
    torch_git: Mapped[str | None]
    status: Mapped[str] = mapped_column(String(32))
    runs: Mapped[list[str]]
    output: Mapped[str]
    seconds: Mapped[float]
    created: Mapped[datetime] = mapped_column(init=False, compare=False)


class Related(MappedAsDataclass, Base):
    """A public issue or pull request that may be about a finding, as a search found it.

    ``kind`` is "issue" or "pull request", ``state`` "open", "closed" or "merged". A greater ``score`` is likelier;
    ``why`` says which terms led to it.
    """

    __tablename__ = "related"
    __table_args__ = (UniqueConstraint("finding_id", "url"),)

    id: Mapped[int] = mapped_column(primary_key=True, init=False, compare=False)
    finding_id: Mapped[int] = mapped_column(ForeignKey("findings.id"), init=False, compare=False)
    url: Mapped[str]
    kind: Mapped[str] = mapped_column(String(16))
    title: Mapped[str]
    state: Mapped[str] = mapped_column(String(16))
    score: Mapped[float]
    why: Mapped[str]

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return self.to_dict("id", "finding_id")


class Umbrella(MappedAsDataclass, Base):
    """A group of findings with one cause, and what a person said of it (`fuzzcompile corpus mark`)."""

    __tablename__ = "umbrellas"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    status: Mapped[str] = mapped_column(String(32), default="open")
    issue: Mapped[str | None] = mapped_column(default=None)
    note: Mapped[str | None] = mapped_column(default=None)


class CoverageRow(Base):
    """Count of a rewrite, operator or kernel, and the case that reached it first.

    ``torch`` is the compiler, a target of its own included (`fuzzcompile.corpus.records.identify_compiler`).
    ``outcome`` of a rewrite is ``fired`` or ``refused`` (by its check); that of a decomposition, a lowering or a kernel
    (``stage`` says which) is ``fired`` where it was used, or ``fallback`` where the operator was called instead.
    """

    __tablename__ = "rewrite_coverage"
    __table_args__ = (UniqueConstraint("torch", "stage", "pass_name", "rewrite", "outcome"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    torch: Mapped[str]
    stage: Mapped[str] = mapped_column(String(32))
    pass_name: Mapped[str]
    rewrite: Mapped[str]
    outcome: Mapped[str] = mapped_column(String(16))
    count: Mapped[int] = mapped_column(BigInteger)
    first_case_id: Mapped[int] = mapped_column(ForeignKey("cases.id"))


def fresh_tables() -> MetaData:
    """A copy of the tables' descriptions, to make or drop them by.

    SQLAlchemy remembers in the description that it added a constraint by ALTER, as it does for PostgreSQL, and would
    leave the constraint out of an SQLite file that the same process makes afterwards.
    """
    fresh = MetaData(naming_convention=NAMES)
    for table in Base.metadata.tables.values():
        table.to_metadata(fresh)
    return fresh
