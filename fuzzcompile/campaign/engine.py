"""The campaign: generate, judge, attribute, reduce, store; again, until the budget is spent.

The engine is a generator of events. Work goes through any ``concurrent.futures.Executor``; results are
stored before they are announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Yielding
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, cast

from fuzzcompile.campaign.bookkeeping import Bookkeeping, stored_coverage
from fuzzcompile.campaign.budget import Clock
from fuzzcompile.campaign.confirming import Confirming
from fuzzcompile.campaign.drawing import Drawn, Generator
from fuzzcompile.campaign.events import (
    CaseJudged,
    Event,
    FindingFound,
    FindingReduced,
    FindingsMerged,
    Finished,
    Started,
    Tick,
    Trouble,
    WorkerActivity,
)
from fuzzcompile.campaign.findings import keep_reproducer, write_draft
from fuzzcompile.campaign.focused import Focused, FocusedSteering
from fuzzcompile.campaign.hearsay import Hearsay
from fuzzcompile.campaign.jobs import Job, Jobs, Result
from fuzzcompile.campaign.leftovers import LeftOver
from fuzzcompile.campaign.places import own_last
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.campaign.steering import Outcome, Steering, items_of
from fuzzcompile.campaign.work import Work, pending_first
from fuzzcompile.contract import CulpritJson, ReportJson, told
from fuzzcompile.corpus import Coverage, Ended, Finding, Kept, Recorded, Store, public_id
from fuzzcompile.errors import EnvironmentUnfit, FuzzcompileError, MachineUnfit
from fuzzcompile.execution.pool import WorkerFailed, WorkerStartFailed, WorkerStopped, WorkerTimeout
from fuzzcompile.focusing.plan import Seen
from fuzzcompile.focusing.tally import FOCUS
from fuzzcompile.hints import command
from fuzzcompile.judging.cut_short import unjudged
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reporting.verdict import name_of
from fuzzcompile.severity import rank
from fuzzcompile.worker.asking import can_resume
from fuzzcompile.worker.leaving import left_behind
from fuzzcompile.worker.lost import is_cut_off, report_of, unlooked, unstartable, verdict_of
from fuzzcompile.worker.reductions import Minimized
from fuzzcompile.worker.tasks import Judged

if TYPE_CHECKING:
    from fuzzcompile.cluster.pool import ClusterPool

_TICK = 0.5
# So many cases of a stream are read when it is resumed: steering has discounted the results of earlier ones.
_REMEMBERED = 20_000
# Secondary candidates of one reduction that are judged, in addition to those that have a recipe.
_MOST_OTHERS = 2
# The campaign stops after so many full compiles in a row that failed for want of a disk or a compiler.
_MOST_UNFIT = 4


class Engine:
    """Runs one campaign.

    Args:
        settings: the settings of the campaign.
        store: the open corpus.
        executor: runs judging and minimizing.
        environment: the environment that results depend on (:func:`fuzzcompile.execution.environment.describe`).
        campaign: the campaign's row in the corpus.
        clock: runs from the start of the command; from now on by default.
        describe_workers: returns the activity of the executor's workers, for display only.
        cluster: the executor again, if it is a cluster, whose workers come and go.
    """

    def __init__(
        self,
        settings: CampaignSettings,
        store: Store,
        executor: Executor,
        environment: Mapping[str, object],
        *,
        campaign: int,
        clock: Clock | None = None,
        describe_workers: Callable[[], Sequence[WorkerActivity]] = lambda: (),
        cluster: ClusterPool | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.describe_workers = describe_workers
        self._cluster = cluster
        self._clock = clock or Clock(settings.budget)
        self._books = Bookkeeping(settings, store, campaign, environment, self._clock)
        self._jobs = Jobs(settings, executor, campaign)
        reach = cluster.environments if cluster is not None else lambda: [environment]
        confirming = None if any(settings.conditions.values()) else Confirming(store, reach)
        part, self._hearsay = store.part(campaign), Hearsay(store, self._books.compiler, self._needs_no_proof)
        self._work = Work(settings, store, self._jobs, self._steered(part), self._clock, confirming, part)
        self._work.known |= {
            (f.signature, Verdict(f.verdict).kind) for f in store.findings() if self._needs_no_proof(f)
        }
        # The best rank of each finding that was minimized, in vain or not: another hit of it would show no more.
        self._tried: dict[str, tuple[int, bool]] = {}
        self._given_up: set[str] = set()  # findings whose minimization failed: it would fail for further hits too
        self._unfit = 0  # full compiles since the last that the machine could do
        self._left = LeftOver()
        for name in pending_first(store, settings, environment):
            self._queue(store.finding(name))

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> Yielding[Event, None, None]:
        """Run the campaign to the end of its budget and yield its events.

        Cases that still run when the budget is spent are cut off. Closing the generator, or an interrupt inside it,
        does the same: everything judged so far is stored, and :meth:`finish` gives the summary.

        Raises:
            EnvironmentUnfit: workers cannot be started, or the machine can compile no more.
            CorpusError: nothing more can be stored.
        """
        yield Started(
            self._books.campaign,
            self.settings.seed,
            self.settings.device if self.settings.target is None else f"the CPU for {self.settings.target}",
            self.settings.workers,
            self.settings.budget,
            self.store.location,
            len(self._work.judged),
            judges=self.settings.judges,
            cluster=self._cluster.state.scheduler if self._cluster is not None else None,
        )
        try:
            while self._clock.remaining > 0.0:
                if not self._work.fill(enough=self._has_enough) and not self._jobs:
                    break
                for future, job in self._jobs.ended(min(_TICK, self._clock.remaining)):
                    yield from self._settle(future, job)
                if (part := self._books.heartbeat(self._left_now)) is not None:
                    self._work.take_part(part)
                    self._work.look_for_left()
                    self._hearsay.take_over(self._work.steering.hear, self._work.known)
                state = None
                if self._cluster is not None:
                    yield from self._cluster.changes()
                    state = self._cluster.state
                    self._books.workers = state.slots
                yield Tick(self._books.tally(), self.describe_workers(), state)
        finally:
            self._left = self._left_now()

    def finish(self, *, interrupted: bool = False, why: str | None = None) -> Finished:
        """Close the campaign in the corpus and summarise it; ``why`` names what the machine lacks, if that ended it."""
        ended: Ended = "interrupted" if interrupted else "failed" if why is not None else self._work.ended
        self._books.end(ended, self._left)
        return self._books.summary(ended, self._left, why)

    def fail(self) -> None:
        """Note in the corpus that an internal error ended the campaign."""
        self._books.end("failed", self._left)

    def _left_now(self) -> LeftOver:
        return self._work.left_over(self._given_up)

    @property
    def _has_enough(self) -> bool:
        limit = self.settings.max_findings
        return limit is not None and len(self._books.new) >= limit

    def _steered(self, part: int) -> Steering | FocusedSteering:
        """Return the stream's steering, in the state in which earlier campaigns on this corpus left it."""
        settings, compiler = self.settings, self._books.compiler
        steering: Steering | FocusedSteering = (
            FocusedSteering(settings.source, settings.seed, settings.mix)
            if isinstance(settings.source, Focused)
            else Steering(settings.drawn_from, settings.seed, settings.mix, settings.strategy)
        )
        seen = [(row.stage, row.rewrite, row.outcome) for row in self.store.coverage(compiler)]
        signatures = [("finding", finding.signature, "fired") for finding in self.store.summaries()]
        profile = settings.drawn_from.profile
        seeds = self.store.seeds(compiler, profile) if profile is not None else []
        past = own_last(self.store.stream_runs(settings.stream, compiler, _REMEMBERED), part)
        steering.resume([*seen, *signatures], past, seeds)
        return steering

    def _needs_no_proof(self, finding: Finding) -> bool:
        """Return whether a further hit would prove nothing new; a device that runs proves more than a target."""
        return _is_proved(finding.culprit) and (self.settings.target is not None or told(finding.report) is None)

    # -- taking results ---------------------------------------------------------------------------

    def _settle(self, future: Future[Result], job: Job) -> Iterator[Event]:
        try:
            result = future.result()
        except WorkerStartFailed as error:
            self._jobs.remember(future, job)
            raise unstartable(error) from error
        except WorkerStopped:
            return
        except WorkerFailed as error:
            yield from self._lost(error, job)
        except Exception as error:  # whatever one task raises, the campaign goes on
            yield from self._raised(error, job)
        else:
            if isinstance(result, Minimized):
                yield from self._minimized(result, job)
            else:
                yield from self._judged(result, job)

    def _judged(self, result: Judged, job: Job) -> Iterator[Event]:
        if not result.screened:
            self._unfit = 0
        stored = self._record(job, result.report, result)
        is_bug, proved = result.report["is_bug"], _is_proved(result.report["culprit"])
        self._work.shares.judged(job.seconds, new_finding=stored.is_new_finding, is_bug=is_bug, proved=proved)
        yield CaseJudged(
            job.place,
            job.name,
            result.report["verdict"],
            job.seconds,
            public_id(stored.finding_id) if stored.finding_id is not None else None,
        )
        yield from self._announce(stored, result.report, job)

    def _announce(self, stored: Recorded, report: ReportJson, job: Job) -> Iterator[Event]:
        """Announce the finding that a case hit, and queue its minimization if that may improve its reproducer."""
        if stored.finding_id is None:
            return
        finding, signature = public_id(stored.finding_id), report["signature"] or ""
        self._books.hit.add(finding)
        if _is_proved(report["culprit"]):
            self._work.known.add((signature, Verdict(report["verdict"]).kind))
        if stored.is_new_finding and finding not in self._books.new:
            self._books.new.append(finding)
            yield FindingFound(finding, report["verdict"], name_of(report["culprit"]))
        if finding not in self._given_up and rank(report) < self._best_tried(finding):
            self._tried[finding] = rank(report)
            self._work.minimize_later(finding, job.case, report)

    def _queue(self, finding: Finding) -> None:
        """Queue the minimization of a stored finding."""
        self._tried[finding.public_id] = rank(finding.report)
        self._work.minimize_stored(finding)

    def _best_tried(self, finding: str) -> tuple[int, bool]:
        """Return the rank of the worst report that a reproducer of the finding shows or that was minimized for it."""
        best = self.store.best_reproducer(finding)
        shown = rank(best.report if best is not None else None)
        return min(shown, self._tried.get(finding, shown))

    def _minimized(self, result: Minimized, job: Job) -> Iterator[Event]:
        self._work.shares.minimized(job.seconds, reproducer=result.confirmed)
        kept = keep_reproducer(self.store, job.minimizes or "", result, job.environment or self._books.environment)
        yield FindingReduced(job.minimizes or "", result)
        yield from self._follow(kept, result.report)
        try:
            for name in (*map(public_id, kept.merged), kept.public_id):
                write_draft(self.store, name, self.settings.drafts)
        except OSError as error:
            yield Trouble(
                f"the draft of {kept.public_id} cannot be written ({error}); "
                f"`{command('issue', kept.public_id, corpus=self.store.location)}` prints it"
            )
        for case in result.others:
            self._work.judge_later(Generator(self.settings.profile).drawn(case, "reduction"))
        drawn = {case.source for case in result.others}
        for source in [source for source in result.other_sources if source not in drawn][:_MOST_OTHERS]:
            self._work.judge_later(Drawn(source, "reduction"))

    def _follow(self, kept: Kept, report: ReportJson) -> Iterator[Event]:
        """Update the state after the corpus stored a reproducer: known signatures, and findings that were merged."""
        self._books.keep(kept)
        if _is_proved(report["culprit"]) and report["is_bug"]:
            self._work.known.add((kept.signature, Verdict(report["verdict"]).kind))
        if kept.is_new_finding:
            yield FindingFound(kept.public_id, report["verdict"], name_of(report["culprit"]))
        vanished = [public_id(key) for key in kept.merged]
        if not vanished:
            return
        self._work.rename(vanished, kept.public_id)
        yield FindingsMerged(kept.public_id, vanished)

    def _lost(self, error: WorkerFailed, job: Job) -> Iterator[Event]:
        """Handle a worker that crashed, hung or ran out of memory; that is the case's verdict if it happens twice."""
        if job.minimizes is not None:
            yield self._lost_minimizing(error, job, job.minimizes)
            return
        compiling, report = left_behind(error.left)
        if report is not None:
            yield from self._judged(Judged(report), job)
            return
        report = report_of(error, job.name, self._books.torch, self.settings.device, self.settings.target)
        slow = self.settings.target is not None and isinstance(error, WorkerTimeout)
        if slow or not (compiling and job.retry):
            report |= {"is_bug": False, "signature": None}
            seen = "; interpreted kernels are slow" if slow else "; seen once"
            report["detail"] += seen if compiling else "; before eager had finished"
        stored = self._record(job, report)
        yield CaseJudged(job.place, job.name, str(verdict_of(error)), job.seconds)
        yield from self._announce(stored, report, job)
        if compiling and not (slow or job.retry):
            self._work.judge(job.case, job.index, retry=True, screen=job.screen, not_on=self._elsewhere(job))

    def _elsewhere(self, job: Job) -> set[str]:
        """Return the machines that the retry must avoid: all of the cluster except the one on which the job ran."""
        here = (job.environment or {}).get("machine")
        if self._cluster is None or here is None:
            return set()
        return {str(environment.get("machine")) for environment in self._cluster.environments()} - {str(here)}

    def _lost_minimizing(self, error: WorkerFailed, job: Job, finding: str) -> Trouble:
        """Handle a minimization that lost its worker over a candidate: resume without it, or give the finding up."""
        self._work.shares.minimized(job.seconds, reproducer=False)
        if job.report is not None and not isinstance(error, WorkerTimeout) and can_resume(error.left):
            self._work.minimize_later(finding, job.case, job.report, error.left)
            over = "; the search goes on" if is_cut_off(error) else " over a candidate; the search goes on without it"
            return Trouble(f"minimizing {finding}: {error}{over}")
        self._given_up.add(finding)
        again = command("minimize", finding, corpus=self.store.location)
        return Trouble(f"minimizing {finding}: {error}; `{again}` tries again")

    def _raised(self, error: Exception, job: Job) -> Iterator[Event]:
        """Store a case as unjudged that could not be judged, or over which fuzzcompile itself failed."""
        text = " ".join(str(error).split())[:300]
        if job.minimizes is not None:
            self._given_up.add(job.minimizes)
            self._work.shares.minimized(job.seconds, reproducer=False)
            yield Trouble(f"minimizing {job.minimizes} failed: {type(error).__name__}: {text}")
            return
        report = cast(ReportJson, unjudged(job.name, self._books.torch, self.settings.device, text))
        self._record(job, report | {"target": unlooked(self.settings.target)})
        self._unfit += isinstance(error, MachineUnfit)
        if self._unfit >= _MOST_UNFIT:
            raise EnvironmentUnfit(f"The campaign stops, because no case can be compiled here any more: {text}")
        if not isinstance(error, FuzzcompileError):
            yield Trouble(f"case #{job.index} could not be judged: {type(error).__name__}: {text}")

    def _record(self, job: Job, report: ReportJson, result: Judged | None = None) -> Recorded:
        coverage = result.coverage if result is not None else ()
        seen = result.seen if result is not None else Seen()
        kept, screened = stored_coverage(coverage), result is not None and result.screened
        self._books.aimed(coverage, seen)
        self._learn(job, report, kept, seen)
        stored = self._books.record(job, report, kept, screened=screened)
        self._books.certify(job.case, report, coverage, stored, screened=screened)
        return stored

    def _learn(self, job: Job, report: ReportJson, coverage: Sequence[Coverage], seen: Seen) -> None:
        """Pass the result of a place in the stream to the steering."""
        if job.index is None:
            return
        reached = {(count.stage, count.rewrite, count.outcome) for count in coverage}
        reached |= {(FOCUS, str(span), "fired") for span in seen.spans}
        step = report["evidence"].get("float64_step")
        is_bug = report["is_bug"]
        outcome = Outcome(
            job.case, items_of(reached, report["signature"] if is_bug else None), job.screen, step, is_bug
        )
        self._work.steering.learn(job.index, outcome)


def _is_proved(culprit: CulpritJson | None) -> bool:
    """Return whether the culprit was shown to be necessary, so that further hits need no ablations."""
    return culprit is not None and culprit.get("necessary") is True
