"""The plain values that go into a corpus and come out of it.

They depend on neither SQL nor torch. Reports and environments are JSON objects; a report is the one that
``fuzzcompile triage --json`` prints (`fuzzcompile.model.contract`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.severity import Severity

if TYPE_CHECKING:
    from fuzzcompile.corpus.machines import Machines
    from fuzzcompile.corpus.models import CampaignRow
    from fuzzcompile.model.contract import EvidenceJson, ReportJson, ShownJson
    from fuzzcompile.model.culprit_contract import CulpritJson


Ended = Literal["budget", "interrupted", "max-findings", "exhausted", "failed"]
Outcome = Literal["fired", "refused", "fallback"]
# What a person says of a finding (`fuzzcompile corpus mark`); "open" until then.
Status = Literal["open", "known", "dup", "fixed", "invalid", "wontfix"]


def identify_compiler(environment: Mapping[str, object]) -> str:
    """The compiler that reached something: the version of torch, and the target that it was told, if any.

    ``2.13.0+cpu``, or ``2.13.0+cpu for cuda:sm_90``.
    """
    target = environment.get("target")
    return str(environment["torch"]) + (f" for {target}" if target else "")


def public_id(finding_id: int) -> str:
    """The short name of a finding: F1, F2 and so on."""
    return f"F{finding_id}"


@dataclass(frozen=True)
class Campaign:
    """Settings with which a campaign starts."""

    seed: int
    settings: Mapping[str, object]
    command: str
    fuzzcompile_version: str
    environment: Mapping[str, object]


@dataclass(frozen=True)
class CaseRecord:
    """A case: what is executed is exactly ``source``, and ``sha256`` identifies it.

    ``stream`` names the seeded sequence that it was drawn from and ``index`` its place there, after which a later
    campaign resumes; ``choices`` are the bytes from which Hypothesis drew it.
    """

    sha256: str
    source: str
    origin: str
    stream: str | None = None
    index: int | None = None
    spec: Mapping[str, object] | None = None
    choices: bytes | None = None
    idioms: Sequence[object] = ()
    near_misses: Sequence[object] = ()
    features: Sequence[str] = ()


@dataclass(frozen=True)
class Coverage:
    """Counts of one run: a rewrite that fired or was refused by its check, an operator or kernel that was used."""

    stage: str
    pass_name: str
    rewrite: str
    outcome: Outcome
    count: int = 1


@dataclass(frozen=True)
class StreamRun:
    """A case of a stream as it was judged: what it was made of, and how much it was the first to reach.

    ``severity`` is that of the finding that it was the first to show, and ``seconds`` what judging it took.
    """

    index: int
    features: tuple[str, ...]
    screened: bool
    firsts: int
    severity: Severity | None = None
    seconds: float = 1.0


@dataclass(frozen=True)
class Seed:
    """A recipe worth varying: how much its case was the first to reach, and how far its rewrites moved float64."""

    sha256: str
    choices: bytes
    firsts: int
    float64_step: float | None


@dataclass(frozen=True)
class JudgedCase:
    """A case that a campaign has judged; ``screened`` if no code was generated for it."""

    name: str
    source: str
    screened: bool


@dataclass(frozen=True)
class StoredReport:
    """The rows of a stored run; ``finding_id`` is None if it shows no bug."""

    case_id: int
    run_id: int
    finding_id: int | None
    is_new_finding: bool


@dataclass(frozen=True)
class Reproducer:
    """A script that shows a finding on its own; ``neighbour`` is the source of the nearest case that passes.

    ``program`` identifies the reduced program up to names; ``shown`` is what was seen when the script was made.
    ``case_sha256`` is the case that was reduced and ``environment`` where ``report`` was made, as far as that is known.
    """

    source: str
    sha256: str
    lines: int
    kind: str
    confirmed: bool
    torch: str
    report: ReportJson | None = None
    neighbour: str | None = None
    program: str | None = None
    shown: ShownJson | None = None
    case_sha256: str | None = None
    environment: Mapping[str, object] | None = None


@dataclass(frozen=True)
class StoredReproducer:
    """Finding in which a reproducer was stored: the one that it was added to, or the one that this became.

    ``merged`` are the ids of findings that vanished into it; their names go on meaning it. ``is_new_finding`` tells
    that the reproducer shows another bug than the finding it was meant for, and that the corpus lacked this one.
    """

    finding_id: int
    signature: str
    merged: tuple[int, ...] = ()
    is_new_finding: bool = False

    @property
    def public_id(self) -> str:
        """The finding's short name."""
        return public_id(self.finding_id)


@dataclass(frozen=True, kw_only=True)
class FindingSummary:
    """One root cause, as lists show it; what it says is that of one report (`Finding`).

    ``devices`` are the kinds of device for which programs that hit it were compiled: ``cpu``, ``cuda`` or a target.
    ``status``, ``issue``, ``note`` and ``duplicate_of`` (a public id) are what a person said; ``searched`` is when
    reports on it were last searched for, with which ``queries``. ``reproducer_lines`` and ``confirmed`` tell of the
    best reproducer, if there is one. ``drawn_from`` is what `fuzzcompile.corpus.queries.drawn_from` says, ``trusted``
    whether its programs may be run, ``machines`` where it was seen.
    """

    id: int
    signature: str
    status: str
    issue: str | None
    note: str | None
    duplicate_of: str | None
    umbrella: str | None
    searched: datetime | None
    queries: list[str] | None
    severity: str | None
    verdict: str
    confidence: str | None
    culprit: CulpritJson | None
    hits: int
    first_seen: datetime
    last_seen: datetime
    torch_versions: tuple[str, ...]
    devices: tuple[str, ...]
    reproducer_lines: int | None
    confirmed: bool | None
    drawn_from: str | None
    trusted: bool
    machines: Machines

    @property
    def public_id(self) -> str:
        """F1, F2, …: what a user types."""
        return public_id(self.id)

    @property
    def is_proved(self) -> bool:
        """Return whether the culprit was shown to be necessary."""
        return self.culprit is not None and self.culprit.get("necessary") is True

    @property
    def is_minor(self) -> bool:
        """Return whether lists count it in one line instead of showing it."""
        return self.severity is not None and Severity(self.severity).is_minor

    @property
    def place(self) -> tuple[int, bool, int, int]:
        """Sorts what comes first in lists: the worst, then what is proved, then what is hit most, then the oldest."""
        worst = len(Severity) if self.severity is None else Severity(self.severity).rank
        return (worst, not self.is_proved, -self.hits, self.id)


@dataclass(frozen=True, kw_only=True)
class Finding(FindingSummary):
    """One root cause, in whole.

    ``report`` is that on its best reproducer where a confirmed one speaks for it
    (`fuzzcompile.corpus.merge.speaks_for`), and else that on its best run; severity, verdict, confidence, culprit
    and evidence are that report's. ``source`` is the case that it is about, or from which the reproducer was reduced;
    where that is not known, the reproducer itself; ``features`` are that case's. All runs count as hits.
    """

    evidence: EvidenceJson | None
    report: ReportJson
    source: str
    source_sha256: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Counters:
    """Counts of a corpus, or of one stream of it."""

    cases: int
    runs: int
    by_verdict: dict[str, int]
    findings: int


# Errors about a corpus that its user can fix.


class CorpusError(EnvironmentUnfit):
    """The corpus cannot be opened, read or written (exit status 3)."""


class CorpusGone(CorpusError):
    """The corpus's server was lost, or does not answer yet: the same call may succeed later."""


# Campaign time: how long campaigns ran, without the time between them.


def campaign_seconds(campaigns: Iterable[CampaignRow]) -> float:
    """Seconds in which at least one campaign ran."""
    return sum((end - start).total_seconds() for start, end in _spans(campaigns))


def moment_at(campaigns: Iterable[CampaignRow], seconds: float) -> datetime | None:
    """When campaigns had run for this many seconds in all; None if they have not."""
    left = timedelta(seconds=seconds)
    for start, end in _spans(campaigns):
        if end - start >= left:
            return start + left
        left -= end - start
    return None


def _spans(campaigns: Iterable[CampaignRow]) -> list[tuple[datetime, datetime]]:
    """The intervals in which at least one campaign ran, in order; a killed one ends with its last heartbeat."""
    spans: list[tuple[datetime, datetime]] = []
    for start, end in sorted((run.started, run.end) for run in campaigns):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((start, end))
    return spans
