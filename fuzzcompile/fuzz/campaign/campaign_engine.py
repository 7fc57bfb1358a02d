"""The campaign: generate, judge, attribute, reduce, store; again, until the budget is spent.

The engine is a generator of events. Work goes through any ``concurrent.futures.Executor``; results are
stored before they are announced.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Yielding
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzzcompile.corpus.records import (
    CaseRecord,
    Coverage,
    Ended,
    Finding,
    FindingSummary,
    StoredReport,
    StoredReproducer,
    identify_compiler,
    public_id,
)
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.minimize_task import can_resume
from fuzzcompile.diagnosis.worker.worker_loss import (
    LossMeaning,
    choose_loss_verdict,
    is_cut_off,
    make_loss_report,
    make_start_error,
    make_unexamined_target,
    weigh_loss,
)
from fuzzcompile.fuzz.campaign.budget import BudgetClock
from fuzzcompile.fuzz.campaign.campaign_events import (
    CampaignTally,
    CaseJudged,
    Event,
    FindingFound,
    FindingLine,
    FindingReduced,
    FindingsMerged,
    Finished,
    RemainingWork,
    Started,
    Tick,
    Trouble,
)
from fuzzcompile.fuzz.campaign.campaign_outputs import keep_reproducer, write_draft
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import DrawnCase, GeneratorSource
from fuzzcompile.fuzz.campaign.certificates import Certificate
from fuzzcompile.fuzz.campaign.focus_steering import FocusSource, FocusSteering
from fuzzcompile.fuzz.campaign.leftovers import ConfirmationQueue, Leftovers, list_unreduced, load_case
from fuzzcompile.fuzz.campaign.steering import (
    CoverageExchange,
    PlaceOutcome,
    Steering,
    StreamSteering,
    collect_items,
    sort_own_last,
)
from fuzzcompile.fuzz.campaign.work_queue import CampaignJob, Result, WorkQueue, list_first_pending
from fuzzcompile.fuzz.focus.focus_request import FOCUS, FocusTally
from fuzzcompile.fuzz.generation.cases import GeneratedCase
from fuzzcompile.model.contract import ReportJson, read_target
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, MachineUnfit
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.judge_task import JudgeResult
from fuzzcompile.model.lost_worker import make_unjudged_record
from fuzzcompile.model.severity import rank
from fuzzcompile.model.stages import REWRITING_STAGES
from fuzzcompile.model.verdicts import CoverageCount, Verdict
from fuzzcompile.programs.shrink.outcome import MinimizeResult
from fuzzcompile.report.verdict_text import name_culprit
from fuzzcompile.run.pool.worker import WorkerFailed, WorkerStartFailed, WorkerStopped, WorkerTimeout
from fuzzcompile.run.pool.worker_pool import TaskPool, WorkerState

if TYPE_CHECKING:
    from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool


# The counters of one campaign, and its rows in the corpus.

_HEARTBEAT = 5.0


def select_stored_coverage(coverage: Sequence[CoverageCount]) -> list[Coverage]:
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
    clock: BudgetClock
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
    def torch(self) -> str:
        """The version of torch under which the campaign runs."""
        return str(self.environment["torch"])

    @property
    def compiler(self) -> str:
        """The version of torch and the target: the corpus counts coverage for each such pair."""
        return identify_compiler(self.environment)

    def make_tally(self) -> CampaignTally:
        """Return the current counters."""
        found = (len(self.hit), len(self.new), len(self._covered))
        return CampaignTally(self.cases, dict(self.verdicts), *found, self.clock.elapsed, self.screened)

    def record(self, job: CampaignJob, result: JudgeResult) -> StoredReport:
        """Count and store a judged case, and add it to the certificates of the user's own passes and backend."""
        report, coverage, screened = result.report, result.coverage, result.screened
        kept = select_stored_coverage(coverage)
        if self._focus is not None:
            self._focus.count([(c.stage, c.rewrite, c.outcome, c.count) for c in coverage], result.seen)
        self._covered |= {(c.stage, c.rewrite) for c in kept if c.outcome == "fired" and c.stage in REWRITING_STAGES}
        self.screened += screened
        self.cases += not job.retry
        self.verdicts[str(report["verdict"])] += 1
        drawn, stream = job.case, self.settings.stream if job.index is not None else None
        made_of = (drawn.spec, drawn.choices or None, drawn.idioms, drawn.near_misses, drawn.features)
        case = CaseRecord(drawn.sha256, drawn.source, drawn.origin, stream, job.index, *made_of)
        stored = self.store.record(
            self.campaign, case, job.environment or self.environment, report, kept, screened=screened, token=job.token
        )
        finding = public_id(stored.finding_id) if stored.finding_id is not None else None
        for certificate in self.certificates:
            certificate.count_case(drawn, report, coverage, screened=screened, finding=finding)
        return stored

    def apply_kept(self, kept: StoredReproducer) -> None:
        """Update the counters after the corpus stored a reproducer: it may have merged findings, or split one off."""
        vanished = {public_id(key) for key in kept.merged}
        self.hit = (self.hit - vanished) | {kept.public_id}
        for certificate in self.certificates:
            certificate.rename_findings(vanished, kept.public_id)
        self.new = [name for name in self.new if name not in vanished]
        if kept.is_new_finding and kept.public_id not in self.new:
            self.new.append(kept.public_id)

    def heartbeat(self, left: Callable[[], Leftovers]) -> int | None:
        """Store the counters and the unfinished work every few seconds, so that they survive if the campaign is killed.

        Returns:
            The part of the stream that the campaign holds; None if no heartbeat was due.
        """
        if time.monotonic() - self._beat <= _HEARTBEAT:
            return None
        self._beat = time.monotonic()
        return self.store.heartbeat(self.campaign, self._counters(left()))

    def end(self, ended: Ended, left: Leftovers) -> None:
        """Close the campaign in the corpus."""
        self.store.finish_campaign(self.campaign, self._counters(left), ended)

    def summarise(self, ended: Ended, left: Leftovers, why: str | None = None) -> Finished:
        """Return the campaign's counters, and its findings as the corpus has them now."""
        findings = self.store.summaries()
        lines = [self._line(finding) for finding in findings if finding.public_id in self.hit]
        wait = list_unreduced(self.store, self.environment)
        foreign = sum(not finding.trusted for finding in wait)
        bugs = sum(bool(case.shows_bug) for case in left.cases)
        behind = RemainingWork(len(left.cases), bugs, len(wait) - foreign, len(findings), foreign)
        hit = [finding for finding in findings if finding.public_id in self.hit]
        certified = [certificate.certify(hit, self.cases) for certificate in self.certificates]
        source, target = self.settings.case_source.account, self.settings.target
        return Finished(
            ended, self.make_tally(), lines, self.store.location, target, behind, why, certified, source, self._focus
        )

    def _counters(self, left: Leftovers) -> dict[str, object]:
        tally = self.make_tally()
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
            culprit=name_culprit(finding.culprit),
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


_TICK = 0.5
# So many cases of a stream are read when it is resumed: steering has discounted the results of earlier ones.
_REMEMBERED = 20_000
# Secondary candidates of one reduction that are judged, in addition to those that have a recipe.
_MOST_OTHERS = 2
# The campaign stops after so many full compiles in a row that failed for want of a disk or a compiler.
_MOST_UNFIT = 4


class CampaignEngine:
    """Runs one campaign, which is the row ``campaign`` in the corpus.

    Results depend on ``environment`` (:func:`fuzzcompile.run.device.describe_environment`). ``clock`` runs from the
    start of the command; ``cluster`` is the executor again, if it is one, whose workers come and go.
    """

    def __init__(
        self,
        settings: CampaignSettings,
        store: Store,
        executor: Executor,
        environment: Mapping[str, object],
        *,
        campaign: int,
        clock: BudgetClock | None = None,
        cluster: ClusterPool | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self._list_workers = executor.workers if isinstance(executor, TaskPool) else list[WorkerState]
        self._cluster = cluster
        self._clock = clock or BudgetClock(settings.budget)
        self._bookkeeping = Bookkeeping(settings, store, campaign, environment, self._clock)
        reach = cluster.environments if cluster is not None else lambda: [environment]
        confirming = None if any(settings.conditions.values()) else ConfirmationQueue(store, reach)
        self._exchange = CoverageExchange(store, self._bookkeeping.compiler, self._needs_no_proof)
        part = store.part(campaign)
        steering = self._make_steering(part)
        self._work = WorkQueue(settings, store, executor, campaign, steering, self._clock, confirming, part)
        self._work.known |= {
            (f.signature, Verdict(f.verdict).kind) for f in store.findings() if self._needs_no_proof(f)
        }
        # The best rank of each finding that was minimized, in vain or not: another hit of it would show no more.
        self._tried: dict[str, tuple[int, bool]] = {}
        self._given_up: set[str] = set()  # findings whose minimization failed: it would fail for further hits too
        self._unfit = 0  # full compiles since the last that the machine could do
        self._left = Leftovers()
        for name in list_first_pending(store, settings, environment):
            finding = store.finding(name)
            self._tried[name] = rank(finding.report)
            self._work.minimize_later(name, load_case(store, finding), finding.report)

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
            self._bookkeeping.campaign,
            self.settings.seed,
            self.settings.device if self.settings.target is None else f"the CPU for {self.settings.target}",
            self.settings.workers,
            self.settings.budget,
            self.store.location,
            len(self._work.judged),
            judges=self.settings.judges,
            cluster=self._cluster.state.scheduler if self._cluster is not None else None,
        )
        limit = self.settings.max_findings
        try:
            while self._clock.remaining > 0.0:
                enough = limit is not None and len(self._bookkeeping.new) >= limit
                if not self._work.fill(enough=enough) and self._work.is_idle:
                    break
                for future, job in self._work.collect_ended(min(_TICK, self._clock.remaining)):
                    yield from self._settle(future, job)
                if (part := self._bookkeeping.heartbeat(self._collect_leftovers)) is not None:
                    self._work.take_part(part)
                    self._work.inherit_cases()
                    self._exchange.merge_news(self._work.steering.add_reached, self._work.known)
                state = None
                if self._cluster is not None:
                    yield from self._cluster.changes()
                    state = self._cluster.state
                    self._bookkeeping.workers = state.slots
                yield Tick(self._bookkeeping.make_tally(), self._list_workers(), state)
        finally:
            self._left = self._collect_leftovers()

    def finish(self, *, interrupted: bool = False, why: str | None = None) -> Finished:
        """Close the campaign in the corpus and summarise it; ``why`` names what the machine lacks, if that ended it."""
        ended: Ended = "interrupted" if interrupted else "failed" if why is not None else self._work.ended
        self._bookkeeping.end(ended, self._left)
        return self._bookkeeping.summarise(ended, self._left, why)

    def fail(self) -> None:
        """Note in the corpus that an internal error ended the campaign."""
        self._bookkeeping.end("failed", self._left)

    def _collect_leftovers(self) -> Leftovers:
        return self._work.collect_leftovers(self._given_up)

    def _make_steering(self, part: int) -> StreamSteering:
        """Return the stream's steering, in the state in which earlier campaigns on this corpus left it."""
        settings, compiler = self.settings, self._bookkeeping.compiler
        steering: StreamSteering = (
            FocusSteering(settings.source, settings.seed, settings.mix)
            if isinstance(settings.source, FocusSource)
            else Steering(settings.case_source, settings.seed, settings.mix, settings.strategy)
        )
        seen = [(row.stage, row.rewrite, row.outcome) for row in self.store.coverage(compiler)]
        signatures = [("finding", finding.signature, "fired") for finding in self.store.summaries()]
        profile = settings.case_source.profile
        seeds = self.store.seeds(compiler, profile) if profile is not None else []
        past = sort_own_last(self.store.stream_runs(settings.stream, compiler, _REMEMBERED), part)
        steering.resume([*seen, *signatures], past, seeds)
        return steering

    def _needs_no_proof(self, finding: Finding) -> bool:
        """Return whether a further hit would prove nothing new; a device that runs proves more than a target."""
        return _is_proved(finding.culprit) and (self.settings.target is not None or read_target(finding.report) is None)

    # -- taking results ---------------------------------------------------------------------------

    def _settle(self, future: Future[Result], job: CampaignJob) -> Iterator[Event]:
        try:
            result = future.result()
        except WorkerStartFailed as error:
            self._work.remember(future, job)
            raise make_start_error(error) from error
        except WorkerStopped:
            return
        except WorkerFailed as error:
            yield from self._handle_lost(error, job)
        except Exception as error:  # whatever one task raises, the campaign goes on
            yield from self._handle_error(error, job)
        else:
            if isinstance(result, MinimizeResult):
                yield from self._handle_minimized(result, job)
            else:
                yield from self._handle_judged(result, job)

    def _handle_judged(self, result: JudgeResult, job: CampaignJob) -> Iterator[Event]:
        if not result.screened:
            self._unfit = 0
        stored = self._record(job, result)
        is_bug, proved = result.report["is_bug"], _is_proved(result.report["culprit"])
        self._work.shares.count_judged(job.seconds, new_finding=stored.is_new_finding, is_bug=is_bug, proved=proved)
        finding = public_id(stored.finding_id) if stored.finding_id is not None else None
        yield CaseJudged(job.place, job.name, result.report["verdict"], job.seconds, finding)
        yield from self._announce(stored, result.report, job)

    def _announce(self, stored: StoredReport, report: ReportJson, job: CampaignJob) -> Iterator[Event]:
        """Announce the finding that a case hit, and queue its minimization if that may improve its reproducer."""
        if stored.finding_id is None:
            return
        finding, signature = public_id(stored.finding_id), report["signature"] or ""
        self._bookkeeping.hit.add(finding)
        if _is_proved(report["culprit"]):
            self._work.known.add((signature, Verdict(report["verdict"]).kind))
        if stored.is_new_finding and finding not in self._bookkeeping.new:
            self._bookkeeping.new.append(finding)
            yield FindingFound(finding, report["verdict"], name_culprit(report["culprit"]))
        if finding not in self._given_up and rank(report) < self._find_best_rank(finding):
            self._tried[finding] = rank(report)
            self._work.minimize_later(finding, job.case, report)

    def _find_best_rank(self, finding: str) -> tuple[int, bool]:
        """Return the rank of the worst report that a reproducer of the finding shows or that was minimized for it."""
        best = self.store.best_reproducer(finding)
        shown = rank(best.report if best is not None else None)
        return min(shown, self._tried.get(finding, shown))

    def _handle_minimized(self, result: MinimizeResult, job: CampaignJob) -> Iterator[Event]:
        self._work.shares.count_minimized(job.seconds, reproducer=result.confirmed)
        kept = keep_reproducer(
            self.store, job.minimizes or "", result, job.environment or self._bookkeeping.environment
        )
        yield FindingReduced(job.minimizes or "", result)
        yield from self._apply_kept(kept, result.report)
        try:
            for name in (*map(public_id, kept.merged), kept.public_id):
                write_draft(self.store, name, self.settings.drafts)
        except OSError as error:
            yield Trouble(
                f"the draft of {kept.public_id} cannot be written ({error}); "
                f"`{format_command('issue', kept.public_id, corpus=self.store.location)}` prints it"
            )
        for case in (case for case in result.others if isinstance(case, GeneratedCase)):
            self._work.judge_later(GeneratorSource(self.settings.profile).wrap_case(case, "reduction"))
        drawn = {case.source for case in result.others}
        for source in [source for source in result.other_sources if source not in drawn][:_MOST_OTHERS]:
            self._work.judge_later(DrawnCase(source, "reduction"))

    def _apply_kept(self, kept: StoredReproducer, report: ReportJson) -> Iterator[Event]:
        """Update the state after the corpus stored a reproducer: known signatures, and findings that were merged."""
        self._bookkeeping.apply_kept(kept)
        if _is_proved(report["culprit"]) and report["is_bug"]:
            self._work.known.add((kept.signature, Verdict(report["verdict"]).kind))
        if kept.is_new_finding:
            yield FindingFound(kept.public_id, report["verdict"], name_culprit(report["culprit"]))
        vanished = [public_id(key) for key in kept.merged]
        if not vanished:
            return
        self._work.rename(vanished, kept.public_id)
        yield FindingsMerged(kept.public_id, vanished)

    def _handle_lost(self, error: WorkerFailed, job: CampaignJob) -> Iterator[Event]:
        """Handle a worker that crashed, hung or ran out of memory; that is the case's verdict if it happens twice."""
        if job.minimizes is not None:
            yield self._handle_lost_minimization(error, job, job.minimizes)
            return
        target = self.settings.target
        meaning, report = weigh_loss(error, target, again=job.retry)
        if report is not None:
            yield from self._handle_judged(JudgeResult(report), job)
            return
        report = make_loss_report(error, job.name, self._bookkeeping.torch, self.settings.device, target)
        if meaning is not LossMeaning.TWICE:
            detail = f"{report['detail']}; {meaning.value}"
            report |= {"is_bug": False, "signature": None, "detail": detail}
        stored = self._record(job, JudgeResult(report))
        yield CaseJudged(job.place, job.name, str(choose_loss_verdict(error)), job.seconds)
        yield from self._announce(stored, report, job)
        if meaning is LossMeaning.ONCE:
            self._work.judge(job.case, job.index, retry=True, screen=job.screen, not_on=self._list_other_machines(job))

    def _list_other_machines(self, job: CampaignJob) -> set[str]:
        """Return the machines that the retry must avoid: all of the cluster except the one on which the job ran."""
        here = (job.environment or {}).get("machine")
        if self._cluster is None or here is None:
            return set()
        return {str(environment.get("machine")) for environment in self._cluster.environments()} - {str(here)}

    def _handle_lost_minimization(self, error: WorkerFailed, job: CampaignJob, finding: str) -> Trouble:
        """Handle a minimization that lost its worker over a candidate: resume without it, or give the finding up."""
        self._work.shares.count_minimized(job.seconds, reproducer=False)
        if job.report is not None and not isinstance(error, WorkerTimeout) and can_resume(error.left):
            self._work.minimize_later(finding, job.case, job.report, error.left)
            over = "; the search goes on" if is_cut_off(error) else " over a candidate; the search goes on without it"
            return Trouble(f"minimizing {finding}: {error}{over}")
        self._given_up.add(finding)
        again = format_command("minimize", finding, corpus=self.store.location)
        return Trouble(f"minimizing {finding}: {error}; `{again}` tries again")

    def _handle_error(self, error: Exception, job: CampaignJob) -> Iterator[Event]:
        """Store a case as unjudged that could not be judged, or over which fuzzcompile itself failed."""
        text = " ".join(str(error).split())[:300]
        if job.minimizes is not None:
            self._given_up.add(job.minimizes)
            self._work.shares.count_minimized(job.seconds, reproducer=False)
            yield Trouble(f"minimizing {job.minimizes} failed: {type(error).__name__}: {text}")
            return
        report = make_unjudged_record(job.name, self._bookkeeping.torch, self.settings.device, text)
        self._record(job, JudgeResult(report | {"target": make_unexamined_target(self.settings.target)}))
        self._unfit += isinstance(error, MachineUnfit)
        if self._unfit >= _MOST_UNFIT:
            raise EnvironmentUnfit(f"The campaign stops, because no case can be compiled here any more: {text}")
        if not isinstance(error, FuzzcompileError):
            yield Trouble(f"case #{job.index} could not be judged: {type(error).__name__}: {text}")

    def _record(self, job: CampaignJob, result: JudgeResult) -> StoredReport:
        report = result.report
        if job.index is not None:
            reached = {(each.stage, each.rewrite, each.outcome) for each in select_stored_coverage(result.coverage)}
            reached |= {(FOCUS, str(span), "fired") for span in result.seen.spans}
            items = collect_items(reached, report["signature"] if report["is_bug"] else None)
            step = report["evidence"].get("float64_step")
            self._work.steering.learn(job.index, PlaceOutcome(job.case, items, job.screen, step, report["is_bug"]))
        return self._bookkeeping.record(job, result)


def _is_proved(culprit: CulpritJson | None) -> bool:
    """Return whether the culprit was shown to be necessary, so that further hits need no ablations."""
    return culprit is not None and culprit.get("necessary") is True
