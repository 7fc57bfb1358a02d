"""The campaign: generate, judge, attribute, reduce, store; again, until the budget is spent.

The engine is a generator of events. Work goes through any ``concurrent.futures.Executor``; results are
stored before they are announced.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator as Yielding
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
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
from fuzzcompile.fuzz.campaign.leftovers import (
    ConfirmationQueue,
    Leftovers,
    list_left_findings,
    list_pending,
    list_unreduced,
    load_case,
)
from fuzzcompile.fuzz.campaign.steering import (
    CoverageExchange,
    PlaceOutcome,
    Steering,
    StreamSteering,
    collect_items,
    sort_own_last,
)
from fuzzcompile.fuzz.campaign.work_queue import CampaignJob, Result, WorkQueue
from fuzzcompile.fuzz.focus.focus_request import FOCUS, FocusTally
from fuzzcompile.fuzz.generation.cases import GeneratedCase
from fuzzcompile.model.contract import ReportJson, read_target
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, MachineUnfit, describe_error, format_message
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.judge_task import JudgeResult
from fuzzcompile.model.lost_worker import make_unjudged_record
from fuzzcompile.model.severity import rank, rate_severity
from fuzzcompile.model.stages import REWRITING_STAGES
from fuzzcompile.model.verdicts import CoverageCount, Verdict
from fuzzcompile.programs.shrink.outcome import MinimizeResult
from fuzzcompile.report.verdict_text import name_culprit
from fuzzcompile.run.pool.worker import WorkerFailed, WorkerStartFailed, WorkerStopped, WorkerTimeout
from fuzzcompile.run.pool.worker_pool import TaskPool

if TYPE_CHECKING:
    from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool


def select_stored_coverage(coverage: Sequence[CoverageCount]) -> list[Coverage]:
    """Return the part of a case's coverage that the corpus keeps: all but vetoed rewrites."""
    return [
        Coverage(count.stage, count.pass_name or "", count.rewrite, count.outcome, count.count)  # type: ignore[arg-type]
        for count in coverage
        if count.outcome != "vetoed"
    ]


_TICK = 0.5
# Counters and unfinished work are stored every few seconds, so that they survive if the campaign is killed.
_HEARTBEAT = 5.0
# So many cases of a stream are read when it is resumed: steering has discounted the results of earlier ones.
_REMEMBERED = 20_000
# Secondary candidates of one reduction that are judged, in addition to those that have a recipe.
_MOST_OTHERS = 2
# The campaign stops after so many full compiles in a row that failed for want of a disk or a compiler.
_MOST_UNFIT = 4


class CampaignEngine:
    """Runs one campaign, which is the row ``campaign`` in the corpus.

    Results depend on ``environment`` (:func:`fuzzcompile.run.device.describe_environment`). ``clock`` runs from the
    start of the command; ``cluster`` is the pool again, if it is one.
    """

    def __init__(
        self,
        settings: CampaignSettings,
        store: Store,
        pool: TaskPool,
        environment: Mapping[str, object],
        *,
        campaign: int,
        clock: BudgetClock | None = None,
        cluster: ClusterPool | None = None,
    ) -> None:
        self.settings, self.store, self.campaign, self.environment = settings, store, campaign, environment
        self._pool, self._cluster = pool, cluster
        self._clock = clock or BudgetClock(settings.budget)
        self._verdicts = Counter[str]()
        self._cases = self._screened = 0
        self._workers = settings.workers  # how many cases run at once; a cluster's workers come and go
        self._new: list[str] = []  # the public ids of the findings that its cases hit and the corpus lacked
        self._hit: set[str] = set()  # of all findings that its cases hit
        self._covered: set[tuple[str, str]] = set()
        self._certificates = [Certificate(loaded) for loaded in settings.custom]
        self._focus = FocusTally(settings.focus) if settings.focus is not None else None
        self._beat = time.monotonic()
        # The corpus counts coverage for each version of torch and target.
        self._torch, self._compiler = str(environment["torch"]), identify_compiler(environment)
        reach = cluster.environments if cluster is not None else lambda: [environment]
        confirming = None if any(settings.conditions.values()) else ConfirmationQueue(store, reach)
        self._exchange = CoverageExchange(store, self._compiler, self._needs_no_proof)
        part = store.part(campaign)
        steering = self._make_steering(part)
        self._work = WorkQueue(settings, store, pool, campaign, steering, self._clock, confirming, part)
        self._work.known |= {
            (f.signature, Verdict(f.verdict).kind) for f in store.findings() if self._needs_no_proof(f)
        }
        # The best rank of each finding that was minimized, in vain or not: another hit of it would show no more.
        self._tried: dict[str, tuple[int, bool]] = {}
        self._given_up: set[str] = set()  # findings whose minimization failed: it would fail for further hits too
        self._unfit = 0  # full compiles since the last that the machine could do
        self._left = Leftovers()
        pending = list_pending(store, environment)
        if settings.judges:
            left = list_left_findings(store, settings.conditions)
            pending = [finding for finding in pending if finding.public_id in left]
        for name in [finding.public_id for finding in pending]:
            finding = store.finding(name)
            self._tried[name] = rank(finding.report)
            self._work.minimize_later(name, load_case(store, finding), finding.report)

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> Yielding[Event, None, None]:
        """Run the campaign to the end of its budget and yield its events.

        Cases that still run then are cut off, as by closing the generator or an interrupt inside it: everything judged
        so far is stored, and :meth:`finish` gives the summary. Raises EnvironmentUnfit if no worker can be started, or
        the machine can compile no more, and CorpusError if nothing more can be stored.
        """
        yield Started(
            self.campaign,
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
                enough = limit is not None and len(self._new) >= limit
                if not self._work.fill(enough=enough):
                    break
                for future, job in self._work.collect_ended(min(_TICK, self._clock.remaining)):
                    yield from self._settle(future, job)
                if time.monotonic() - self._beat > _HEARTBEAT:
                    self._beat = time.monotonic()
                    self._work.take_part(self.store.heartbeat(self.campaign, self._counters(self._collect_leftovers())))
                    self._work.inherit_cases()
                    self._exchange.merge_news(self._work.steering.add_reached, self._work.known)
                state = None
                if self._cluster is not None:
                    yield from self._cluster.changes()
                    state = self._cluster.state
                    self._workers = state.slots
                yield Tick(self._make_tally(), self._pool.workers(), state)
        finally:
            self._left = self._collect_leftovers()

    def finish(self, *, interrupted: bool = False, why: str | None = None) -> Finished:
        """Close the campaign in the corpus and summarise it; ``why`` names what the machine lacks, if that ended it."""
        ended: Ended = "interrupted" if interrupted else "failed" if why is not None else self._work.ended
        self.store.finish_campaign(self.campaign, self._counters(self._left), ended)
        findings = self.store.summaries()
        hit = [finding for finding in findings if finding.public_id in self._hit]
        wait = list_unreduced(self.store, self.environment)
        foreign = sum(not finding.trusted for finding in wait)
        left = self._left.cases
        bugs = sum(case.shows_bug for case in left)
        return Finished(
            ended,
            self._make_tally(),
            [self._describe_finding(finding) for finding in hit],
            self.store.location,
            self.settings.target,
            RemainingWork(len(left), bugs, len(wait) - foreign, len(findings), foreign),
            why,
            [certificate.certify(hit, self._cases) for certificate in self._certificates],
            self.settings.case_source.account,
            self._focus,
        )

    def fail(self) -> None:
        """Note in the corpus that an internal error ended the campaign."""
        self.store.finish_campaign(self.campaign, self._counters(self._left), "failed")

    def _make_tally(self) -> CampaignTally:
        found = (len(self._hit), len(self._new), len(self._covered))
        return CampaignTally(self._cases, dict(self._verdicts), *found, self._clock.elapsed, self._screened)

    def _counters(self, left: Leftovers) -> dict[str, object]:
        tally = self._make_tally()
        counted = {**vars(tally), "seconds": round(tally.seconds, 1)}
        return {**counted, "workers": self._workers, "left_over": left.to_json()}

    def _describe_finding(self, finding: FindingSummary) -> FindingLine:
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
            new=finding.public_id in self._new,
            status=finding.status,
            issue=finding.issue,
            umbrella=finding.umbrella,
        )

    def _collect_leftovers(self) -> Leftovers:
        return self._work.collect_leftovers(self._given_up)

    def _make_steering(self, part: int) -> StreamSteering:
        """Return the stream's steering, in the state in which earlier campaigns on this corpus left it."""
        settings, compiler = self.settings, self._compiler
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
        self._hit.add(finding)
        if _is_proved(report["culprit"]):
            self._work.known.add((signature, Verdict(report["verdict"]).kind))
        if stored.is_new_finding and finding not in self._new:
            self._new.append(finding)
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
        kept = keep_reproducer(self.store, job.minimizes or "", result, job.environment or self.environment)
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
        """Update the state after the corpus stored a reproducer: it may have merged findings, or split one off."""
        vanished = [public_id(key) for key in kept.merged]
        self._hit = (self._hit - set(vanished)) | {kept.public_id}
        for certificate in self._certificates:
            certificate.rename_findings(vanished, kept.public_id)
        self._new = [name for name in self._new if name not in vanished]
        if _is_proved(report["culprit"]) and report["is_bug"]:
            self._work.known.add((kept.signature, Verdict(report["verdict"]).kind))
        if kept.is_new_finding:
            self._new += [kept.public_id] if kept.public_id not in self._new else []
            yield FindingFound(kept.public_id, report["verdict"], name_culprit(report["culprit"]))
        if vanished:
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
        report = make_loss_report(error, job.name, self._torch, self.settings.device, target)
        if meaning is not LossMeaning.TWICE:
            detail = f"{report['detail']}; {meaning.value}"
            report |= {"is_bug": False, "signature": None, "detail": detail}
        stored = self._record(job, JudgeResult(report))
        yield CaseJudged(job.place, job.name, str(choose_loss_verdict(error)), job.seconds)
        yield from self._announce(stored, report, job)
        if meaning is LossMeaning.ONCE:  # it is to be repeated on the machine where it happened
            here = (job.environment or {}).get("machine")
            reach = self._cluster.environments() if self._cluster is not None and here is not None else ()
            others = {str(environment.get("machine")) for environment in reach} - {str(here)}
            self._work.judge(job.case, job.index, retry=True, screen=job.screen, not_on=others)

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
        text = format_message(error, 300)
        if job.minimizes is not None:
            self._given_up.add(job.minimizes)
            self._work.shares.count_minimized(job.seconds, reproducer=False)
            yield Trouble(f"minimizing {job.minimizes} failed: {describe_error(error)}")
            return
        report = make_unjudged_record(job.name, self._torch, self.settings.device, text)
        self._record(job, JudgeResult(report | {"target": make_unexamined_target(self.settings.target)}))
        self._unfit += isinstance(error, MachineUnfit)
        if self._unfit >= _MOST_UNFIT:
            raise EnvironmentUnfit(f"The campaign stops, because no case can be compiled here any more: {text}")
        if not isinstance(error, FuzzcompileError):
            yield Trouble(f"case #{job.index} could not be judged: {describe_error(error)}")

    def _record(self, job: CampaignJob, result: JudgeResult) -> StoredReport:
        """Count and store a judged case; steering and the certificates of the user's own passes learn from it."""
        report, drawn, kept = result.report, job.case, select_stored_coverage(result.coverage)
        if job.index is not None:
            reached = {(each.stage, each.rewrite, each.outcome) for each in kept}
            reached |= {(FOCUS, str(span), "fired") for span in result.seen.spans}
            items = collect_items(reached, report["signature"] if report["is_bug"] else None)
            step = report["evidence"].get("float64_step")
            severity = rate_severity(report) if report["is_bug"] else None
            self._work.steering.learn(job.index, PlaceOutcome(drawn, items, job.screen, step, severity, job.seconds))
        if self._focus is not None:
            self._focus.count([(c.stage, c.rewrite, c.outcome, c.count) for c in result.coverage], result.seen)
        self._covered |= {(c.stage, c.rewrite) for c in kept if c.outcome == "fired" and c.stage in REWRITING_STAGES}
        self._screened += result.screened
        self._cases += not job.retry
        self._verdicts[str(report["verdict"])] += 1
        stream = self.settings.stream if job.index is not None else None
        made_of = (drawn.spec, drawn.choices or None, drawn.idioms, drawn.near_misses, drawn.features)
        case = CaseRecord(drawn.sha256, drawn.source, drawn.origin, stream, job.index, *made_of)
        around, screened = job.environment or self.environment, result.screened
        stored = self.store.record(self.campaign, case, around, report, kept, screened=screened, token=job.token)
        finding = public_id(stored.finding_id) if stored.finding_id is not None else None
        for certificate in self._certificates:
            certificate.count_case(drawn, report, result.coverage, screened=screened, finding=finding)
        return stored


def _is_proved(culprit: CulpritJson | None) -> bool:
    """Return whether the culprit was shown to be necessary, so that further hits need no ablations."""
    return culprit is not None and culprit.get("necessary") is True
