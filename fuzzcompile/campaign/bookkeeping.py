"""The counters of one campaign, and its rows in the corpus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fuzzcompile.campaign.budget import Clock
from fuzzcompile.campaign.certificate import Certificate
from fuzzcompile.campaign.drawing import Drawn
from fuzzcompile.campaign.events import Behind, FindingLine, Finished, Tally
from fuzzcompile.campaign.jobs import Job
from fuzzcompile.campaign.leftovers import LeftOver, waiting
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.contract import ReportJson
from fuzzcompile.corpus import (
    CaseRecord,
    Coverage,
    Ended,
    FindingSummary,
    Kept,
    Recorded,
    Store,
    compiler_of,
    public_id,
)
from fuzzcompile.focusing.plan import Seen
from fuzzcompile.focusing.tally import FocusTally
from fuzzcompile.judging.counts import CoverageCount
from fuzzcompile.reporting.verdict import name_of
from fuzzcompile.stage_names import REWRITING_STAGES

_HEARTBEAT = 5.0


def stored_coverage(coverage: Sequence[CoverageCount]) -> list[Coverage]:
    """Return the part of a case's coverage that the corpus keeps: all but vetoed rewrites."""
    return [
        Coverage(count.stage, count.pass_name or "", count.rewrite, count.outcome, count.count)  # type: ignore[arg-type]
        for count in coverage
        if count.outcome != "vetoed"
    ]


@dataclass
class Bookkeeping:
    """Counts what a campaign judges and stores it; ``campaign`` is its row in the corpus.

    ``workers`` is how many cases run at once; a cluster's workers come and go. ``hit`` are the public ids of the
    findings that its cases hit, ``new`` those that the corpus lacked.
    """

    settings: CampaignSettings
    store: Store
    campaign: int
    environment: Mapping[str, object]
    clock: Clock
    verdicts: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    screened: int = 0
    workers: int = 0
    new: list[str] = field(default_factory=list)
    hit: set[str] = field(default_factory=set)
    certificates: list[Certificate] = field(default_factory=list)
    _covered: set[tuple[str, str]] = field(default_factory=set)
    _beat: float = field(default_factory=time.monotonic)
    _focus: FocusTally | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.workers = self.workers or self.settings.workers
        self.certificates = [Certificate(loaded) for loaded in self.settings.custom]
        if self.settings.focus is not None:
            self._focus = FocusTally(self.settings.focus)

    @property
    def seconds(self) -> float:
        """Seconds that the campaign has run, from the start of the command."""
        return self.clock.elapsed

    @property
    def torch(self) -> str:
        """The version of torch under which the campaign runs."""
        return str(self.environment["torch"])

    @property
    def compiler(self) -> str:
        """The version of torch and the target: the corpus counts coverage for each such pair."""
        return compiler_of(self.environment)

    def tally(self) -> Tally:
        """Return the current counters."""
        rewrites, findings, new = len(self._covered), len(self.hit), len(self.new)
        return Tally(self.cases, dict(self.verdicts), findings, new, rewrites, self.seconds, self.screened)

    def record(self, job: Job, report: ReportJson, kept: Sequence[Coverage], *, screened: bool) -> Recorded:
        """Count and store a judged case; ``kept`` is its `stored_coverage`."""
        self._covered |= {(c.stage, c.rewrite) for c in kept if c.outcome == "fired" and c.stage in REWRITING_STAGES}
        self.screened += screened
        self.cases += not job.retry
        self.verdicts[str(report["verdict"])] += 1
        drawn, stream = job.case, self.settings.stream if job.index is not None else None
        made_of = (drawn.spec, drawn.choices or None, drawn.idioms, drawn.near_misses, drawn.features)
        case = CaseRecord(drawn.sha256, drawn.source, drawn.origin, stream, job.index, *made_of)
        return self.store.record(
            self.campaign, case, job.environment or self.environment, report, kept, screened=screened, token=job.token
        )

    def certify(
        self, drawn: Drawn, report: ReportJson, coverage: Sequence[CoverageCount], stored: Recorded, *, screened: bool
    ) -> None:
        """Add a judged and stored case to the certificates of the user's own passes and backend."""
        finding = public_id(stored.finding_id) if stored.finding_id is not None else None
        for certificate in self.certificates:
            certificate.see(drawn, report, coverage, screened=screened, finding=finding)

    def aimed(self, coverage: Sequence[CoverageCount], seen: Seen) -> None:
        """Count which aims of a focus a case matched."""
        if self._focus is not None:
            self._focus.count([(c.stage, c.rewrite, c.outcome, c.count) for c in coverage], seen)

    def keep(self, kept: Kept) -> None:
        """Update the counters after the corpus stored a reproducer: it may have merged findings, or split one off."""
        vanished = {public_id(key) for key in kept.merged}
        self.hit = (self.hit - vanished) | {kept.public_id}
        for certificate in self.certificates:
            certificate.follow(vanished, kept.public_id)
        self.new = [name for name in self.new if name not in vanished]
        if kept.is_new_finding and kept.public_id not in self.new:
            self.new.append(kept.public_id)

    def heartbeat(self, left: Callable[[], LeftOver]) -> int | None:
        """Store the counters and the unfinished work every few seconds, so that they survive if the campaign is killed.

        Returns:
            The part of the stream that the campaign holds; None if no heartbeat was due.
        """
        if time.monotonic() - self._beat <= _HEARTBEAT:
            return None
        self._beat = time.monotonic()
        return self.store.heartbeat(self.campaign, self._counters(left()))

    def end(self, ended: Ended, left: LeftOver) -> None:
        """Close the campaign in the corpus."""
        self.store.finish_campaign(self.campaign, self._counters(left), ended)

    def summary(self, ended: Ended, left: LeftOver, why: str | None = None) -> Finished:
        """Return the campaign's counters, and its findings as the corpus has them now."""
        findings = self.store.summaries()
        lines = [self._line(finding) for finding in findings if finding.public_id in self.hit]
        wait = waiting(self.store, self.environment)
        foreign = sum(not finding.trusted for finding in wait)
        bugs = sum(bool(case.shows_bug) for case in left.cases)
        behind = Behind(len(left.cases), bugs, len(wait) - foreign, len(findings), foreign)
        hit = [finding for finding in findings if finding.public_id in self.hit]
        certified = [certificate.certified(hit, self.cases) for certificate in self.certificates]
        source, target = self.settings.drawn_from.account, self.settings.target
        return Finished(
            ended, self.tally(), lines, self.store.location, target, behind, why, certified, source, self._focus
        )

    def _counters(self, left: LeftOver) -> dict[str, object]:
        tally = self.tally()
        return {
            "cases": tally.cases,
            "screened": tally.screened,
            "workers": self.workers,
            "verdicts": dict(tally.verdicts),
            "findings": tally.findings,
            "new_findings": tally.new_findings,
            "seconds": round(tally.seconds, 1),
            "left_over": left.to_json(),
        }

    def _line(self, finding: FindingSummary) -> FindingLine:
        draft = self.settings.drafts / f"{finding.public_id}.md"
        return FindingLine(
            finding=finding.public_id,
            verdict=finding.verdict,
            severity=finding.severity,
            culprit=name_of(finding.culprit),
            signature=finding.signature,
            necessary=finding.culprit.get("necessary") if finding.culprit else None,
            hits=finding.hits,
            reproducer_lines=finding.reproducer_lines,
            confirmed=bool(finding.confirmed),
            draft=str(draft) if draft.exists() else None,  # of this campaign or an earlier one
            new=finding.public_id in self.new,
            status=finding.status,
            issue=finding.issue,
            umbrella=finding.umbrella,
        )
