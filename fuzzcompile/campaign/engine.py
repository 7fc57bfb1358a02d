"""The campaign: generate, judge, attribute, reduce, store; again, until the budget is spent.

The engine is a generator of events. Work goes through any ``concurrent.futures.Executor``; results are
stored before they are announced.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Yielding
from concurrent.futures import Executor, Future
from typing import Any

from fuzzcompile.campaign.drawing import Drawn, Generator
from fuzzcompile.campaign.events import (
    CaseJudged,
    Event,
    FindingFound,
    FindingLine,
    FindingReduced,
    Finished,
    Started,
    Tally,
    Tick,
    Trouble,
    WorkerActivity,
)
from fuzzcompile.campaign.jobs import Job, Jobs
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.campaign.steering import Outcome, Steering, items_of
from fuzzcompile.commands.drafts import write_draft
from fuzzcompile.commands.minimize import keep
from fuzzcompile.corpus import CaseRecord, Coverage, Finding, Recorded, Store, public_id, severity
from fuzzcompile.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.execution.pool import WorkerFailed, WorkerStartFailed, WorkerStopped, WorkerTimeout
from fuzzcompile.judging.report import unjudged, worker_failure
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reporting.verdict import name_of
from fuzzcompile.worker.judge import Judged, Shrunk, left_behind

_TICK = 0.5
# A finding that comes up just before the end of the budget still gets this long to be made small.
_MIN_SHRINK_SECONDS = 45.0
_HEARTBEAT = 5.0
# Candidates of one reduction, beside those that can be drawn, that are judged because they failed in another way.
_MOST_OTHERS = 2
# A source that has drawn so many known programs in a row has no others.
_REPEATED = 2000
# Stages whose coverage is one of rewrites.
_REWRITES = ("pre_grad", "joint_graph", "freezing", "post_grad", "partition")


class Engine:
    """Runs one campaign. ``describe_workers`` tells what the executor's workers do, for display only."""

    def __init__(
        self,
        settings: CampaignSettings,
        store: Store,
        executor: Executor,
        environment: Mapping[str, Any],
        *,
        campaign: int,
        describe_workers: Callable[[], Sequence[WorkerActivity]] = lambda: (),
    ) -> None:
        self.settings = settings
        self.store = store
        self.environment = environment
        self.campaign = campaign
        self.describe_workers = describe_workers
        self.verdicts: Counter[str] = Counter()
        self.cases = 0
        self.new: list[str] = []
        self.hit: set[str] = set()
        self._known = {(f.signature, _kind(f.verdict)) for f in store.findings() if _is_proved(f.culprit)}
        self._covered: set[tuple[str, str]] = set()
        self.screened = 0
        self._steering = self._steered()
        self._left: set[str] = set()  # findings whose minimising failed: each further hit would fail as well
        self._jobs = Jobs(settings, executor)
        self._start = time.monotonic()
        self._beat = self._start
        self._submitted = 0
        self._ended = "budget"

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> Yielding[Event, None, None]:
        """Run the campaign to the end of its budget and yield what happens.

        Closing the generator, or an interrupt raised inside it, leaves everything judged so far stored;
        :meth:`finish` then gives the summary.

        Raises:
            EnvironmentUnfit: workers cannot be started.
        """
        known = self.store.recorded_indices(self.settings.stream)
        yield Started(
            self.campaign,
            self.settings.seed,
            self.settings.device,
            self.settings.workers,
            self.settings.budget,
            self.store.location,
            len(known),
        )
        indices = (index for index in itertools.count() if index not in known)
        with self._jobs:
            while True:
                self._fill(indices)
                if not self._jobs:
                    break
                for future, job in self._jobs.ended(_TICK):
                    yield from self._settle(future, job)
                self._heartbeat()
                yield Tick(self.tally(), self.describe_workers())

    def finish(self, *, interrupted: bool = False) -> Finished:
        """Close the campaign in the corpus and summarise it."""
        ended = "interrupted" if interrupted else self._ended
        self.store.finish_campaign(self.campaign, self._counters(), ended)  # type: ignore[arg-type]
        lines = [self._line(found) for found in self.store.findings() if found.public_id in self.hit]
        return Finished(ended, self.tally(), lines, self.store.location)

    def fail(self) -> None:
        """Note in the corpus that the campaign ended by an error of its own."""
        self.store.finish_campaign(self.campaign, self._counters(), "failed")

    def tally(self) -> Tally:
        """Counters as they are now."""
        return Tally(
            self.cases,
            dict(self.verdicts),
            len(self.hit),
            len(self.new),
            len(self._covered),
            time.monotonic() - self._start,
            self.screened,
        )

    # -- giving out work --------------------------------------------------------------------------

    def _fill(self, indices: Iterator[int]) -> None:
        repeated = 0
        while len(self._jobs) < self.settings.workers and self._wants_more():
            if repeated > _REPEATED:
                self._ended = "exhausted"
                return
            index = next(indices)
            case, screen = self._steering.at(index)
            if self.store.has_source(case.sha256, self.settings.stream) or any(
                job.case.sha256 == case.sha256 for job in self._jobs
            ):
                repeated += 1
                continue  # another index drew the same program: it has been judged
            self._submitted += 1
            self._judge(case, index, screen=screen)

    def _steered(self) -> Steering:
        """The stream's steering, which goes on where earlier campaigns on this corpus left it."""
        settings, torch = self.settings, self.environment["torch"]
        steering = Steering(settings.drawn_from, settings.seed, settings.mix, settings.strategy)
        seen = [(row.stage, row.rewrite, row.outcome) for row in self.store.coverage(torch)]
        signatures = [("finding", found.signature, "fired") for found in self.store.findings()]
        profile = settings.drawn_from.profile
        seeds = self.store.seeds(torch, profile) if profile is not None else []
        steering.resume([*seen, *signatures], self.store.stream_runs(settings.stream, torch), seeds)
        return steering

    def _wants_more(self) -> bool:
        budget, limit = self.settings.budget, self.settings.max_findings
        if limit is not None and len(self.new) >= limit:
            self._ended = "max-findings"
            return False
        if budget.cases is not None:
            return self._submitted < budget.cases
        return self._remaining() > 0

    def _remaining(self) -> float:
        """Seconds of the budget that are left; infinite for a budget of cases."""
        if self.settings.budget.seconds is None:
            return float("inf")
        return self.settings.budget.seconds - (time.monotonic() - self._start)

    def _judge(self, case: Drawn, index: int | None, *, retry: bool = False, screen: bool = False) -> None:
        self._jobs.judge(case, index, self._known, retry=retry, screen=screen)

    def _shrink(self, finding: str, job: Job, report: Mapping[str, Any]) -> None:
        seconds = min(self.settings.shrink_seconds, max(self._remaining(), _MIN_SHRINK_SECONDS))
        self._jobs.shrink(finding, job, report, seconds)

    # -- taking results ---------------------------------------------------------------------------

    def _settle(self, future: Future[Any], job: Job) -> Iterator[Event]:
        try:
            result = future.result()
        except WorkerStartFailed as error:
            raise EnvironmentUnfit(f"No worker can be started: {error}. Run `fuzzcompile doctor`.") from error
        except WorkerStopped:
            return
        except WorkerFailed as error:
            yield from self._lost(error, job)
        except Exception as error:
            yield from self._raised(error, job)
        else:
            if isinstance(result, Shrunk):
                yield from self._reduced(result, job)
            else:
                yield from self._judged(result, job)

    def _judged(self, result: Judged, job: Job) -> Iterator[Event]:
        stored = self._record(job, result.report, result)
        yield CaseJudged(
            job.index if job.index is not None else -1,
            result.report["verdict"],
            job.seconds,
            public_id(stored.finding_id) if stored.finding_id is not None else None,
        )
        if stored.finding_id is not None:
            yield from self._announce(stored, result.report, job)

    def _announce(self, stored: Recorded, report: Mapping[str, Any], job: Job) -> Iterator[Event]:
        finding = public_id(stored.finding_id or 0)
        self.hit.add(finding)
        if _is_proved(report["culprit"]):
            self._known.add((report["signature"], _kind(report["verdict"])))
        if stored.is_new_finding:
            self.new.append(finding)
            culprit = report["culprit"] or {}
            yield FindingFound(
                finding, report["signature"], report["verdict"], name_of(culprit), culprit.get("necessary")
            )
        if finding not in self._left and severity(report) > self._shown(finding):
            self._shrink(finding, job, report)

    def _shown(self, finding: str) -> int:
        """Severity of the face that the finding's reproducers show, those under way included."""
        best = self.store.best_reproducer(finding)
        under_way = [other.severity for other in self._jobs if other.shrinks == finding]
        return max([severity(best.report if best is not None else None), *under_way])

    def _reduced(self, result: Shrunk, job: Job) -> Iterator[Event]:
        finding = job.shrinks or ""
        keep(self.store, finding, result)
        draft: str | None = None
        try:
            draft = str(write_draft(self.store, finding, self.settings.drafts))
        except OSError as error:
            yield Trouble(
                f"the draft of {finding} cannot be written ({error}); `fuzzcompile issue {finding}` prints it"
            )
        yield FindingReduced(
            finding,
            result.lines_before,
            result.lines_after,
            result.tests,
            result.seconds,
            result.confirmed,
            draft,
        )
        for other in result.others:
            if self._remaining() > 0 and not self.store.has_source(other.sha256):
                self._judge(Generator(self.settings.profile).drawn(other, "reduction"), None)
        drawn = {other.source for other in result.others}
        for source in [one for one in result.other_sources if one not in drawn][:_MOST_OTHERS]:
            met = Drawn(source, "reduction")
            if self._remaining() > 0 and not self.store.has_source(met.sha256):
                self._judge(met, None)

    def _lost(self, error: WorkerFailed, job: Job) -> Iterator[Event]:
        """The worker crashed, hung or grew: that is the case's verdict, believed if it comes twice."""
        if job.shrinks is not None:
            self._left.add(job.shrinks)
            yield Trouble(f"minimising {job.shrinks} {error}; `fuzzcompile minimize {job.shrinks}` tries again")
            return
        verdict = Verdict.TIMEOUT if isinstance(error, WorkerTimeout) else Verdict.CRASH
        compiling, found = left_behind(job.marker)
        if found is not None:
            yield from self._judged(Judged(found), job)
            return
        believed = compiling and job.retry
        report = worker_failure(
            job.path.stem, self.environment["torch"], self.settings.device, verdict, str(error)
        ).to_json()
        if not believed:
            report |= {"is_bug": False, "signature": None}
            report["detail"] += "; seen once" if compiling else "; before eager had finished"
        stored = self._record(job, report, None)
        yield CaseJudged(job.index if job.index is not None else -1, str(verdict), job.seconds)
        if stored.finding_id is not None:
            yield from self._announce(stored, report, job)
        elif compiling and not job.retry and self._remaining() > 0:
            self._judge(job.case, job.index, retry=True, screen=job.screen)

    def _raised(self, error: Exception, job: Job) -> Iterator[Event]:
        """Our own failure, or a case that nothing can be said of: stored, and the campaign goes on."""
        text = " ".join(str(error).split())[:300]
        if job.shrinks is not None:
            self._left.add(job.shrinks)
            yield Trouble(f"minimising {job.shrinks} failed: {type(error).__name__}: {text}")
            return
        report = unjudged(job.path.stem, self.environment["torch"], self.settings.device, text)
        self._record(job, report, None)
        if not isinstance(error, FuzzcompileError):
            yield Trouble(f"case #{job.index} could not be judged: {type(error).__name__}: {text}")

    # -- the corpus -------------------------------------------------------------------------------

    def _record(self, job: Job, report: Mapping[str, Any], result: Judged | None) -> Recorded:
        coverage = [
            Coverage(c.stage, c.pass_name or "", c.rewrite, c.outcome, c.count)  # type: ignore[arg-type]
            for c in (result.coverage if result is not None else ())
            if c.outcome != "vetoed"
        ]
        self._covered |= {(c.stage, c.rewrite) for c in coverage if c.outcome == "fired" and c.stage in _REWRITES}
        self._learn(job, report, coverage)
        screened = result is not None and result.screened
        self.screened += screened
        self.cases += not job.retry
        self.verdicts[str(report["verdict"])] += 1
        return self.store.record(
            self.campaign,
            CaseRecord(
                sha256=job.case.sha256,
                source=job.case.source,
                origin=job.case.origin,
                stream=self.settings.stream if job.index is not None else None,
                index=job.index,
                spec=job.case.spec,
                choices=job.case.choices or None,
                idioms=job.case.idioms,
                near_misses=job.case.near_misses,
                features=job.case.features,
            ),
            dict(self.environment),
            dict(report),
            coverage,
            screened=screened,
        )

    def _learn(self, job: Job, report: Mapping[str, Any], coverage: Sequence[Coverage]) -> None:
        """Tell the steering what a place in the stream brought."""
        if job.index is None:
            return
        reached = {(c.stage, c.rewrite, c.outcome) for c in coverage}
        step = (report.get("evidence") or {}).get("float64_step")
        signature = report.get("signature") if report.get("is_bug") else None
        outcome = Outcome(job.case, items_of(reached, signature), job.screen, step, bool(report.get("is_bug")))
        self._steering.learn(job.index, outcome)

    def _heartbeat(self) -> None:
        if time.monotonic() - self._beat > _HEARTBEAT:
            self._beat = time.monotonic()
            self.store.heartbeat(self.campaign, self._counters())

    def _counters(self) -> dict[str, Any]:
        tally = self.tally()
        return {
            "cases": tally.cases,
            "screened": tally.screened,
            "verdicts": dict(tally.verdicts),
            "findings": tally.findings,
            "new_findings": tally.new_findings,
            "seconds": round(tally.seconds, 1),
        }

    def _draft_of(self, finding: str) -> str | None:
        """The draft's path, from this campaign or an earlier one."""
        path = self.settings.drafts / f"{finding}.md"
        return str(path) if path.exists() else None

    def _line(self, found: Finding) -> FindingLine:
        best = self.store.best_reproducer(found.public_id)
        culprit = found.culprit or {}
        return FindingLine(
            found.public_id,
            found.verdict,
            name_of(culprit),
            culprit.get("necessary"),
            found.hits,
            best.lines if best is not None else None,
            best is not None and best.confirmed,
            self._draft_of(found.public_id),
            found.public_id in self.new,
        )


def _kind(verdict: str) -> str:
    return Verdict(verdict).kind


def _is_proved(culprit: Mapping[str, Any] | None) -> bool:
    """Further hits of a finding whose culprit was shown to be necessary need no ablations of their own."""
    return culprit is not None and culprit.get("necessary") is True
