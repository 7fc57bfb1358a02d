"""The campaign: generate, judge, attribute, reduce, store; again, until the budget is spent.

The engine is a generator of events. Work goes through any ``concurrent.futures.Executor``; results are
stored before they are announced.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Yielding
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzcompile.campaign.budget import Budget
from fuzzcompile.campaign.drafts import write_draft
from fuzzcompile.campaign.drawing import Drawn, Generator, Source
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
from fuzzcompile.campaign.minimising import keep
from fuzzcompile.campaign.pool import ATTRIBUTION_SHARE
from fuzzcompile.campaign.steering import UNIFORM, Mix, Outcome, Steering, Strategy, items_of
from fuzzcompile.corpus import CaseRecord, Coverage, Finding, Recorded, Store, public_id, severity
from fuzzcompile.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.execution.pool import WorkerFailed, WorkerStartFailed, WorkerStopped, WorkerTimeout
from fuzzcompile.generation import Profile
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.report import unjudged, worker_failure
from fuzzcompile.reporting.verdict import name_of
from fuzzcompile.work import Judged, JudgeTask, ShrinkTask, Shrunk, judge_file, left_behind, shrink

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


@dataclass(frozen=True)
class CampaignSettings:
    """What a campaign is asked to do.

    ``source`` is what cases are drawn from (None: the generator under ``profile``), ``mix`` at which speeds they are
    judged, ``strategy`` how their stream is steered.
    """

    budget: Budget
    seed: int
    profile: Profile
    device: str
    workers: int
    torch: str
    vetoes: tuple[str, ...] = ()
    plants: tuple[str, ...] = ()
    case_seconds: float = 180.0
    max_findings: int | None = None
    shrink_seconds: float = 120.0
    drafts: Path = Path("reports/drafts")
    mix: Mix = "mixed"
    strategy: Strategy = field(default_factory=Strategy)
    source: Source | None = None

    @property
    def stream(self) -> str:
        """Key of the seeded sequence of cases, under which judged indices are remembered."""
        drawn = self.drawn_from.name
        source = f" {drawn}" if drawn else ""
        how = "" if self.mix == "mixed" else f" {self.mix}-only"
        steered = " unsteered" if self.strategy == UNIFORM else ""
        vetoes = "".join(f" veto={name}" for name in sorted(self.vetoes))
        plants = "".join(f" plant={name}" for name in sorted(self.plants))
        device = self.device.split(":")[0]
        return f"seed={self.seed} torch={self.torch} device={device}{source}{how}{steered}{vetoes}{plants}"

    @property
    def drawn_from(self) -> Source:
        """Where the cases come from."""
        return self.source if self.source is not None else Generator(self.profile)


@dataclass
class _Job:
    """Something under way on a worker."""

    case: Drawn
    index: int | None
    path: Path
    marker: Path
    started: float = field(default_factory=time.monotonic)
    retry: bool = False
    shrinks: str | None = None
    severity: int = 0
    screen: bool = False


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
        self.executor = executor
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
        self._jobs: dict[Future[Any], _Job] = {}
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
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
            while True:
                self._fill(indices, Path(folder))
                if not self._jobs:
                    break
                done, _ = wait(self._jobs, timeout=_TICK, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from self._settle(future, self._jobs.pop(future), Path(folder))
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

    def _fill(self, indices: Iterator[int], folder: Path) -> None:
        repeated = 0
        while len(self._jobs) < self.settings.workers and self._wants_more():
            if repeated > _REPEATED:
                self._ended = "exhausted"
                return
            index = next(indices)
            case, screen = self._steering.at(index)
            if self.store.has_source(case.sha256, self.settings.stream) or any(
                job.case.sha256 == case.sha256 for job in self._jobs.values()
            ):
                repeated += 1
                continue  # another index drew the same program: it has been judged
            self._submitted += 1
            self._judge(case, index, folder, screen=screen)

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

    def _judge(
        self, case: Drawn, index: int | None, folder: Path, *, retry: bool = False, screen: bool = False
    ) -> None:
        path = folder / f"case_{case.sha256[:12]}.py"
        path.write_text(case.source, encoding="utf-8")
        marker = path.with_suffix(f".{'again' if retry else 'eager'}")
        task = JudgeTask(
            str(path),
            self.settings.vetoes,
            str(marker),
            tuple(sorted(self._known)),
            ATTRIBUTION_SHARE * self.settings.case_seconds,
            screen=screen,
        )
        label = f"judge #{index}" if index is not None else "judge a by-catch"
        future = self._submit(judge_file, task, label)
        self._jobs[future] = _Job(case, index, path, marker, retry=retry, screen=screen)

    def _shrink(self, finding: str, job: _Job, report: Mapping[str, Any]) -> None:
        seconds = min(self.settings.shrink_seconds, max(self._remaining(), _MIN_SHRINK_SECONDS))
        choices = job.case.choices or None
        task = ShrinkTask(
            job.case.source,
            dict(report),
            choices,
            self.settings.profile,
            seconds,
            vetoes=self.settings.vetoes,
        )
        future = self._submit(shrink, task, f"minimise {finding}", limit=seconds + 240.0)
        self._jobs[future] = _Job(job.case, job.index, job.path, job.marker, shrinks=finding, severity=severity(report))

    def _submit(
        self, function: Callable[[Any], Any], task: Any, label: str, *, limit: float | None = None
    ) -> Future[Any]:
        schedule = getattr(self.executor, "schedule", None)
        if schedule is None:
            return self.executor.submit(function, task)
        future: Future[Any] = schedule(function, (task,), label=label, time_limit=limit)
        return future

    # -- taking results ---------------------------------------------------------------------------

    def _settle(self, future: Future[Any], job: _Job, folder: Path) -> Iterator[Event]:
        try:
            result = future.result()
        except WorkerStartFailed as error:
            raise EnvironmentUnfit(f"No worker can be started: {error}. Run `fuzzcompile doctor`.") from error
        except WorkerStopped:
            return
        except WorkerFailed as error:
            yield from self._lost(error, job, folder)
        except Exception as error:
            yield from self._raised(error, job)
        else:
            if isinstance(result, Shrunk):
                yield from self._reduced(result, job, folder)
            else:
                yield from self._judged(result, job)

    def _judged(self, result: Judged, job: _Job) -> Iterator[Event]:
        stored = self._record(job, result.report, result)
        yield CaseJudged(
            job.index if job.index is not None else -1,
            result.report["verdict"],
            time.monotonic() - job.started,
            public_id(stored.finding_id) if stored.finding_id is not None else None,
        )
        if stored.finding_id is not None:
            yield from self._announce(stored, result.report, job)

    def _announce(self, stored: Recorded, report: Mapping[str, Any], job: _Job) -> Iterator[Event]:
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
        under_way = [other.severity for other in self._jobs.values() if other.shrinks == finding]
        return max([severity(best.report if best is not None else None), *under_way])

    def _reduced(self, result: Shrunk, job: _Job, folder: Path) -> Iterator[Event]:
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
                self._judge(Generator(self.settings.profile).drawn(other, "reduction"), None, folder)
        drawn = {other.source for other in result.others}
        for source in [one for one in result.other_sources if one not in drawn][:_MOST_OTHERS]:
            met = Drawn(source, "reduction")
            if self._remaining() > 0 and not self.store.has_source(met.sha256):
                self._judge(met, None, folder)

    def _lost(self, error: WorkerFailed, job: _Job, folder: Path) -> Iterator[Event]:
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
        yield CaseJudged(job.index if job.index is not None else -1, str(verdict), time.monotonic() - job.started)
        if stored.finding_id is not None:
            yield from self._announce(stored, report, job)
        elif compiling and not job.retry and self._remaining() > 0:
            self._judge(job.case, job.index, folder, retry=True, screen=job.screen)

    def _raised(self, error: Exception, job: _Job) -> Iterator[Event]:
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

    def _record(self, job: _Job, report: Mapping[str, Any], result: Judged | None) -> Recorded:
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

    def _learn(self, job: _Job, report: Mapping[str, Any], coverage: Sequence[Coverage]) -> None:
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
