"""The events of a running campaign. Handlers turn them into a display, a log, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fuzzcompile.fuzz.campaign.budget import CampaignBudget
from fuzzcompile.fuzz.cluster.cluster_state import ClusterChange, ClusterState
from fuzzcompile.fuzz.focus.focus_request import FocusTally
from fuzzcompile.model.severity import FailOn, Severity
from fuzzcompile.programs.shrink.outcome import MinimizeResult
from fuzzcompile.run.pool.worker_pool import WorkerState


@dataclass(frozen=True)
class CampaignTally:
    """Counters of this campaign.

    ``findings`` were hit, ``new_findings`` of them were not in the corpus; ``rewrites`` fired at least once; no code
    was generated for ``screened`` of the ``cases``; ``seconds`` is wall time.
    """

    cases: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    findings: int = 0
    new_findings: int = 0
    rewrites: int = 0
    seconds: float = 0.0
    screened: int = 0

    @property
    def cases_per_minute(self) -> float:
        """Judged cases per minute of wall time."""
        return 60.0 * self.cases / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Started:
    """The campaign starts; earlier campaigns judged ``known`` cases of its stream.

    If it does not judge (``judges``), it minimizes findings of the corpus. ``cluster`` is its Dask scheduler's address.
    """

    campaign: int
    seed: int
    device: str
    workers: int
    budget: CampaignBudget
    corpus: str
    known: int
    judges: bool = True
    cluster: str | None = None


@dataclass(frozen=True)
class CaseJudged:
    """A case has its verdict; ``case`` is its name in reports, ``finding`` the id of the finding that it hit."""

    index: int
    case: str
    verdict: str
    seconds: float
    finding: str | None = None


@dataclass(frozen=True)
class FindingFound:
    """A finding that was not in the corpus."""

    finding: str
    verdict: str
    culprit: str


@dataclass(frozen=True)
class FindingReduced:
    """A finding has a reproducer."""

    finding: str
    minimized: MinimizeResult


@dataclass(frozen=True)
class FindingsMerged:
    """Findings turned out to be the same bug as another; their names remain valid as names of it."""

    finding: str
    merged: Sequence[str]


@dataclass(frozen=True)
class Trouble:
    """An error that cost one task, not the campaign."""

    what: str


@dataclass(frozen=True)
class Tick:
    """Time passed: the current counters, workers and, if there is one, cluster."""

    tally: CampaignTally
    workers: Sequence[WorkerState]
    cluster: ClusterState | None = None


@dataclass(frozen=True)
class FindingLine:
    """A line of the summary; ``severity`` is a word of `fuzzcompile.model.severity.Severity`."""

    finding: str
    verdict: str
    severity: str | None
    culprit: str
    signature: str
    necessary: bool | None
    hits: int
    reproducer_lines: int | None
    confirmed: bool
    draft: str | None
    new: bool
    status: str
    issue: str | None
    umbrella: str | None


@dataclass(frozen=True)
class RemainingWork:
    """The work that is left: ``cases`` were cut off, ``bugs`` of which had shown a bug.

    ``waiting`` of the corpus's ``findings`` have no reproducer yet, and ``foreign`` others are run once trusted.
    """

    cases: int = 0
    bugs: int = 0
    waiting: int = 0
    findings: int = 0
    foreign: int = 0


@dataclass(frozen=True)
class Finished:
    """The campaign is over. ``ended`` is ``budget``, ``max-findings``, ``exhausted``, ``interrupted`` or ``failed``.

    ``why`` names what the machine lacks, if that ended it. ``findings`` are those that its cases hit, the worst first.
    ``target`` is the device that the compiler was told, if it was not the one that ran. ``certified`` are the
    certificates of the user's own passes and backend, ``source`` is the account of the source of the cases, ``focus``
    how often each aim of a focus matched.
    """

    ended: str
    tally: CampaignTally
    findings: Sequence[FindingLine]
    corpus: str
    target: str | None = None
    behind: RemainingWork = field(default_factory=RemainingWork)
    why: str | None = None
    certified: Sequence[Mapping[str, object]] = ()
    source: Mapping[str, object] = field(default_factory=dict)
    focus: FocusTally | None = None

    def shows(self, fail_on: FailOn) -> bool:
        """Return whether a finding counts."""
        rated = ((line.verdict, line.severity) for line in self.findings)
        return any(severity is not None and fail_on.counts(verdict, Severity(severity)) for verdict, severity in rated)

    def to_json(self) -> dict[str, object]:
        """Return the summary as plain data."""
        return {
            "ended": self.ended,
            "why": self.why,
            "cases": self.tally.cases,
            "screened": self.tally.screened,
            "verdicts": dict(self.tally.verdicts),
            "rewrites_covered": self.tally.rewrites,
            "seconds": round(self.tally.seconds, 1),
            "cases_per_minute": round(self.tally.cases_per_minute, 1),
            "corpus": self.corpus,
            "target": self.target,
            "left_over": {
                "cases": self.behind.cases,
                "bugs": self.behind.bugs,
                "to_minimize": self.behind.waiting,
                "to_trust": self.behind.foreign,
            },
            **({"source": dict(self.source)} if self.source else {}),
            "findings_in_corpus": self.behind.findings,
            **({"certificates": [dict(each) for each in self.certified]} if self.certified else {}),
            "findings": [{"id": line.finding, **vars(line)} for line in self.findings],
            "focus": self.focus.to_json() if self.focus is not None else {},
        }


Event = (
    Started | CaseJudged | FindingFound | FindingReduced | FindingsMerged | Trouble | Tick | Finished | ClusterChange
)
