"""The plain values that go into a corpus and come out of it.

Nothing here knows of SQL, and nothing of torch: reports and environments are JSON objects, a
report being the one that ``fuzzcompile triage --json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Ended = Literal["budget", "interrupted", "max-findings", "exhausted", "failed"]
Outcome = Literal["fired", "refused", "fallback"]


def public_id(finding_id: int) -> str:
    """The short name under which people speak of a finding: F1, F2 and so on."""
    return f"F{finding_id}"


@dataclass(frozen=True)
class Campaign:
    """What a campaign is started with."""

    seed: int
    settings: Mapping[str, Any]
    command: str
    fuzzcompile_version: str
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class StoredCampaign:
    """A campaign as the corpus remembers it; ``ended`` is None while it runs and after a kill."""

    id: int
    seed: int
    settings: dict[str, Any]
    command: str
    fuzzcompile_version: str
    environment: dict[str, Any]
    counters: dict[str, Any]
    started: datetime
    last_heard: datetime
    finished: datetime | None
    ended: str | None


@dataclass(frozen=True)
class CaseRecord:
    """A case: what is executed is exactly ``source``, and ``sha256`` identifies it.

    ``stream`` names the seeded sequence that it was drawn from and ``index`` its place there, so
    that a later campaign can go on behind it; ``choices`` are the bytes Hypothesis drew it from.
    """

    sha256: str
    source: str
    origin: str
    stream: str | None = None
    index: int | None = None
    spec: Mapping[str, Any] | None = None
    choices: bytes | None = None
    idioms: Sequence[Any] = ()
    near_misses: Sequence[Any] = ()
    features: Sequence[str] = ()


@dataclass(frozen=True)
class Coverage:
    """How often a rewrite fired in a run, or matched and was refused by its check; or something else was reached."""

    stage: str
    pass_name: str
    rewrite: str
    outcome: Outcome
    count: int = 1


@dataclass(frozen=True)
class StoredCoverage:
    """How often something was reached under one torch, and the case that did so first."""

    torch: str
    stage: str
    pass_name: str
    rewrite: str
    outcome: str
    count: int
    first_case_id: int
    first_case_sha256: str


@dataclass(frozen=True)
class StreamRun:
    """A case of a stream as it was judged: what it was made of, and how much it was the first to reach."""

    index: int
    features: tuple[str, ...]
    screened: bool
    firsts: int
    finding: bool


@dataclass(frozen=True)
class Seed:
    """A case worth varying: its recipe, and why: how much it was the first to reach, how far it moved float64."""

    sha256: str
    choices: bytes
    firsts: int
    float64_step: float | None


@dataclass(frozen=True)
class Recorded:
    """Where a run was stored; ``finding_id`` is None when it is no bug."""

    case_id: int
    run_id: int
    finding_id: int | None
    is_new_finding: bool


@dataclass(frozen=True)
class Reproducer:
    """A script that shows a finding alone; ``neighbour`` is the source of the nearest case that passes."""

    source: str
    sha256: str
    lines: int
    kind: str
    confirmed: bool
    torch: str
    report: Mapping[str, Any] | None = None
    neighbour: str | None = None


@dataclass(frozen=True)
class Finding:
    """One root cause. ``report`` and ``source`` are those of its best run, all runs count as hits."""

    id: int
    signature: str
    status: str
    verdict: str
    confidence: str | None
    culprit: dict[str, Any] | None
    evidence: dict[str, Any] | None
    hits: int
    first_seen: datetime
    last_seen: datetime
    torch_versions: tuple[str, ...]
    report: dict[str, Any]
    source: str
    source_sha256: str

    @property
    def public_id(self) -> str:
        """F1, F2, …: what a user types."""
        return public_id(self.id)


@dataclass(frozen=True)
class Counters:
    """What a corpus, or one stream of it, holds."""

    cases: int
    runs: int
    by_verdict: dict[str, int]
    findings: int
