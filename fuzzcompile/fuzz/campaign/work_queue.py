"""The queue of a campaign's work, and the division of the workers' time between its kinds."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace

from fuzzcompile.corpus.records import Ended
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.local_pool import ATTRIBUTION_SHARE
from fuzzcompile.diagnosis.worker.minimize_task import CONCLUDING, LEAST_SEARCH, MINIMIZE, MinimizeTask
from fuzzcompile.diagnosis.worker.worker_loss import read_left
from fuzzcompile.fuzz.campaign.budget import BudgetClock
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import DrawnCase
from fuzzcompile.fuzz.campaign.leftovers import (
    ConfirmationQueue,
    LeftCase,
    Leftovers,
    list_left_cases,
)
from fuzzcompile.fuzz.campaign.steering import StreamSteering, list_places
from fuzzcompile.fuzz.generation.recipes import read_recipe
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.focus_plan import FocusWatch
from fuzzcompile.model.judge_task import JUDGE, JudgeResult, JudgeTask
from fuzzcompile.model.severity import rank
from fuzzcompile.programs.shrink.outcome import MinimizeResult
from fuzzcompile.run.pool.worker_pool import TaskPool

# Division of the workers' time: between judging and minimizing, and between judging and proving.

# Least share of the workers' time for minimizing, and the most while cases are judged: a finding can be minimized after
# the campaign too, and one that is not reached is lost.
LEAST, MOST = 0.25, 1 / 3
# Proofs may take this share of the time of judging before their time is cut.
_PROVING = 0.5
# Least share of its usual time that a proof gets: enough to try the likeliest suspects.
_SHORTEST = 0.25
# Earlier results are discounted by this factor after each further one.
_MEMORY = 0.98
# Prior: each activity starts as if it had one result in this many seconds.
_PRIOR_SECONDS = 60.0


@dataclass
class _Activity:
    seconds: float = 0.0
    lately: float = 0.0
    brought: float = 0.0

    def count(self, seconds: float, brought: float) -> None:
        self.seconds += seconds
        self.lately = self.lately * _MEMORY + seconds
        self.brought = self.brought * _MEMORY + brought

    @property
    def rate(self) -> float:
        """Results per second of a worker."""
        return (self.brought + 1.0) / (self.lately + _PRIOR_SECONDS)


@dataclass
class TimeShares:
    """Time and results of judging, proving and minimizing in a campaign; seconds are worker seconds."""

    _judging: _Activity = field(default_factory=_Activity)
    _minimizing: _Activity = field(default_factory=_Activity)
    _proving: _Activity = field(default_factory=_Activity)

    def count_judged(self, seconds: float, *, new_finding: bool, is_bug: bool, proved: bool) -> None:
        """Count a judged case; for a bug, most of the time goes into its proof."""
        self._judging.count(seconds, float(new_finding))
        if is_bug:
            self._proving.count(seconds, float(proved))

    def count_minimized(self, seconds: float, *, reproducer: bool) -> None:
        """Count a minimization, with or without a confirmed reproducer."""
        self._minimizing.count(seconds, float(reproducer))

    @property
    def minimization_share(self) -> float:
        """The share of the workers' time for minimizing while cases are judged."""
        gain = self._minimizing.rate
        return min(MOST, max(LEAST, gain / (gain + self._judging.rate)))

    def may_minimize(self, running: int, workers: int, seconds: float) -> bool:
        """Return whether one more minimization may begin beside those ``running`` while cases are judged.

        ``seconds`` are worker seconds spent so far on these cases. A share of less than one worker takes turns.
        """
        own = self.minimization_share * workers
        if own >= 1.0:
            return running < own
        spent = self._minimizing.seconds
        return not running and spent <= self.minimization_share * (spent + self._judging.seconds + seconds)

    @property
    def proof(self) -> float:
        """The share of its usual time that a proof gets: less where proofs take long and prove little."""
        if self._proving.seconds <= _PROVING * max(self._judging.seconds, 10 * _PRIOR_SECONDS):
            return 1.0
        return min(1.0, max(_SHORTEST, self._proving.brought * _PRIOR_SECONDS / max(self._proving.lately, 1.0)))


Result = JudgeResult | MinimizeResult

# Once less is left, no case is begun: even a screen takes half a second.
_LEAST_CASE = 1.0
# Seconds between two looks for what other campaigns left.
_LOOK_EVERY = 120.0
# A source that has drawn this many known programs in a row counts as exhausted.
_REPEATED = 2000
# Seconds that the search for a smaller program may take.
_SEARCH_SECONDS = 120.0
# Seconds that minimizing a finding may take beyond its search, to confirm the reproducer.
_CONFIRMING_SECONDS = 240.0


@dataclass
class CampaignJob:
    """A case that is judged; or, with ``minimizes``, the finding whose case is minimized, and its ``report``.

    ``index`` is the place in the stream (None for a secondary candidate). ``token`` is the same whenever and wherever
    the job is done, so that it is stored once. ``left`` holds the intermediate results that its worker has left so far
    (:func:`fuzzcompile.run.pool.worker.leave`), or one that was lost over it. ``environment`` is the environment of the
    result, where that is not the same for the whole campaign.
    """

    case: DrawnCase
    index: int | None
    token: str | None = None
    left: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    retry: bool = False
    minimizes: str | None = None
    report: ReportJson | None = None
    screen: bool = False
    environment: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        """The name of the case in reports."""
        return f"case_{self.case.sha256[:12]}"

    @property
    def place(self) -> int:
        """The place in the stream as events report it; -1 for a case outside of the stream."""
        return self.index if self.index is not None else -1

    @property
    def seconds(self) -> float:
        """Seconds that the job has been running."""
        return time.monotonic() - self.started


class WorkQueue:
    """Keeps the workers busy until the budget is spent, and then lists the unfinished work.

    ``shares`` decides how much of the workers' time goes into minimizing while cases are judged; ``known`` are the
    signatures and kinds of bug that need no further proof. ``campaign`` is its row in the corpus, ``part`` the part of
    the stream that it judges (`fuzzcompile.corpus.transactions`), and ``confirming`` hands out findings of other
    machines.
    """

    def __init__(
        self,
        settings: CampaignSettings,
        store: Store,
        pool: TaskPool,
        campaign: int,
        steering: StreamSteering,
        clock: BudgetClock,
        confirming: ConfirmationQueue | None = None,
        part: int = 0,
    ) -> None:
        self.settings, self.store, self.pool = settings, store, pool
        self.campaign, self.steering, self.clock = campaign, steering, clock
        self._confirming = confirming
        self.ended: Ended = "budget"
        self.known: set[tuple[str, str]] = set()
        self.shares = TimeShares()
        self._running: dict[Future[Result], CampaignJob] = {}
        self._secondary: deque[DrawnCase] = deque()
        self._reductions: dict[str, CampaignJob] = {}
        self._left: deque[LeftCase] = deque()
        self._placed: set[int | None] = set()
        self._looked = -math.inf
        self._inherited: set[str] = set()  # hashes of the cases that were taken over
        self.inherit_cases()
        self.judged: set[int] = set()
        self._part = -1
        self.take_part(part)
        self._submitted = 0
        self._exhausted = False

    def take_part(self, part: int) -> None:
        """Continue with this part of the stream."""
        if part != self._part:
            self._part = part
            self.judged = self.store.recorded_indices(self.settings.stream)
            every = list_places(part, self.settings.case_source.size)
            self._indices = (index for index in every if index not in self.judged and index not in self._placed)

    def inherit_cases(self) -> None:
        """Take over cases that campaigns of this stream left; repeated, because one may be killed at any time."""
        if not self.settings.judges or time.monotonic() - self._looked < _LOOK_EVERY:
            return
        self._looked = time.monotonic()
        others = list_left_cases(self.store, self.settings.stream, self.campaign)
        found = [left for left in others if left.case.sha256 not in self._inherited]
        self._left += found
        self._placed |= {left.index for left in found}
        self._inherited |= {left.case.sha256 for left in found}

    def fill(self, *, enough: bool) -> bool:
        """Submit work for every idle worker; with ``enough`` findings, no further case. Return False if all is done."""
        while len(self._running) < self.pool.capacity:
            judging = self._wants_more(enough=enough)
            begun = self._begin_reduction(judging=judging) or self._begin_secondary()
            if not (begun or (judging and (self._begin_confirmation() or self._begin()))):
                return bool(self._running)
        return bool(self._running or self._secondary or self._reductions) or self._wants_more(enough=enough)

    # -- cases ------------------------------------------------------------------------------------

    def _wants_more(self, *, enough: bool) -> bool:
        budget = self.settings.budget
        if enough:
            self.ended = "max-findings"
        if enough or self._exhausted or not self.settings.judges:
            return False
        if budget.cases is not None:
            return self._submitted < budget.cases
        return self.clock.remaining > _LEAST_CASE

    def _begin(self) -> bool:
        left = self._take_left_over() or self._draw_next()
        if left is None:
            self._exhausted, self.ended = True, "exhausted"
            return False
        self._submitted += 1
        self.judge(left.case, left.index, screen=left.screen)
        return True

    def _take_left_over(self) -> LeftCase | None:
        while self._left:
            left = self._left.popleft()
            if not self.store.has_source(left.case.sha256, self.settings.stream if left.index is not None else None):
                return left
        return None

    def _draw_next(self) -> LeftCase | None:
        """Draw the next program that was not judged yet, to the end of the stream or until it has repeated itself."""
        for index in itertools.islice(self._indices, _REPEATED if self.settings.case_source.size is None else None):
            if (chosen := self.steering.at(index)) is not None:
                case, screen = chosen
                running = any(job.case.sha256 == case.sha256 for job in self._running.values())
                if not running and not self.store.has_source(case.sha256, self.settings.stream):
                    return LeftCase(case, index, screen)
        return None

    def judge(
        self,
        case: DrawnCase,
        index: int | None,
        *,
        retry: bool = False,
        screen: bool = False,
        not_on: Collection[str] = (),
    ) -> None:
        """Submit a case; ``index`` is its place in the stream, None for a secondary candidate.

        ``retry``: it has cost a worker before. It would show nothing new on the machines ``not_on``
        (`TaskPool.schedule`).
        """
        # A place is judged once by all campaigns, anything else once by each: another campaign may draw another program
        # at the same place, and judge the same program on another machine.
        place = f"{self.settings.stream} #{index}" if index is not None else f"campaign {self.campaign}"
        token = hashlib.sha256(f"{place} {case.sha256} {'again' if retry else 'first'}".encode()).hexdigest()
        job = CampaignJob(case, index, token, retry=retry, screen=screen)
        task = JudgeTask(
            path=f"{job.name}.py",
            source=case.source,
            vetoes=self.settings.vetoes,
            known=tuple(sorted(self.known)),
            seconds=ATTRIBUTION_SHARE * self.settings.case_seconds * self.shares.proof,
            screen=screen,
            watch=self.settings.focus.watch if self.settings.focus is not None else FocusWatch(),
        )
        label = f"judge #{index}" if index is not None else "judge a secondary candidate"
        self._submit(JUDGE, task, label, job, not_on=not_on)

    def judge_later(self, case: DrawnCase) -> None:
        """Queue a secondary candidate, unless the corpus knows its source."""
        if not self.store.has_source(case.sha256):
            self._secondary.append(case)

    def _begin_secondary(self) -> bool:
        if not self._secondary or self.clock.remaining <= _LEAST_CASE:
            return False
        self.judge(self._secondary.popleft(), None)
        return True

    def _begin_confirmation(self) -> bool:
        waiting = self._confirming.next(self._submitted) if self._confirming is not None else None
        if waiting is not None:
            self.judge(waiting.case, None, not_on=waiting.not_on)
        return waiting is not None

    # -- findings to minimize ---------------------------------------------------------------------

    def minimize_later(
        self, finding: str, case: DrawnCase, report: ReportJson, left: Mapping[str, str] | None = None
    ) -> None:
        """Queue the minimization of a finding; the worst is minimized first.

        ``left`` holds the intermediate results of a worker that was lost over it (`MinimizeTask.left`).
        """
        self._reductions[finding] = CampaignJob(case, None, minimizes=finding, report=report, left=dict(left or {}))

    def _begin_reduction(self, *, judging: bool) -> bool:
        seconds = min(_SEARCH_SECONDS, self.clock.remaining - CONCLUDING)
        running = {job.minimizes for job in self._running.values() if job.minimizes is not None}
        free = [waiting for name, waiting in self._reductions.items() if name not in running]
        if not free or seconds < LEAST_SEARCH or (judging and not self._may_minimize(len(running))):
            return False
        worst = min(free, key=lambda waiting: rank(waiting.report))
        del self._reductions[str(worst.minimizes)]
        assert worst.report is not None
        recipe = read_recipe(worst.case.choices, worst.case.spec)
        task = MinimizeTask(worst.case.source, worst.report, recipe, seconds)
        task = replace(task, vetoes=self.settings.vetoes, left=dict(worst.left))
        worst.started = time.monotonic()
        self._submit(MINIMIZE, task, f"minimize {worst.minimizes}", worst, limit=seconds + _CONFIRMING_SECONDS)
        return True

    def _may_minimize(self, running: int) -> bool:
        judging = sum(job.seconds for job in self._running.values() if job.minimizes is None)
        return not self.steering.is_seeking and self.shares.may_minimize(running, self.pool.capacity, judging)

    def rename(self, vanished: list[str], finding: str) -> None:
        """Replace findings that were merged into another by that one."""
        for job in self._running.values():
            if job.minimizes in vanished:
                job.minimizes = finding
        for name in vanished:
            self._reductions.pop(name, None)  # the finding that is left has a reproducer

    # -- running jobs -----------------------------------------------------------------------------

    def _submit(
        self,
        function: Callable[..., Result],
        task: JudgeTask | MinimizeTask,
        label: str,
        job: CampaignJob,
        *,
        limit: float | None = None,
        not_on: Collection[str] = (),
    ) -> None:
        # What has cost a worker may be owed to the tasks that the worker had run before.
        future = self.pool.schedule(
            function,
            (task,),
            label=label,
            time_limit=limit,
            anew=job.retry,
            on_left=job.left.__setitem__,
            not_on=not_on,
        )
        self._running[future] = job

    def collect_ended(self, timeout: float) -> Iterator[tuple[Future[Result], CampaignJob]]:
        """Wait for ``timeout`` seconds at most, and yield the jobs that have ended; one over which it ends is left."""
        if not self._running:  # a cluster has lost its workers, and others may come
            time.sleep(timeout)
        done, _ = wait(self._running, timeout=timeout, return_when=FIRST_COMPLETED)
        for future in done:
            job = self._running[future]
            job.environment = self.pool.environment_of(future)
            yield future, job
            del self._running[future]

    # -- the end ----------------------------------------------------------------------------------

    def collect_leftovers(self, given_up: set[str]) -> Leftovers:
        """Return the running and waiting work, which the next campaign has to do if this one ends now."""
        running = self._running.values()
        cases = [
            LeftCase(job.case, job.index, job.screen, None if report is None else report["verdict"])
            for job in running
            if job.minimizes is None and not job.retry
            for report in [read_left(job.left)[1]]
        ]
        cases += [*self._left, *(LeftCase(case, None) for case in self._secondary)]
        without = self.store.unreduced()
        waiting = {*self._reductions, *(job.minimizes for job in running if job.minimizes is not None)}
        return Leftovers(
            cases,
            [signature for name, signature in without.items() if name in waiting],
            [signature for name, signature in without.items() if name in given_up],
        )
