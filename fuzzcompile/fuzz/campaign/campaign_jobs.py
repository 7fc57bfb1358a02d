"""The settings of a campaign, and the jobs that run on its workers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fuzzcompile.diagnosis.worker.local_pool import ATTRIBUTION_SHARE
from fuzzcompile.diagnosis.worker.minimize_task import MINIMIZE, MinimizeTask
from fuzzcompile.fuzz.campaign.budget import CampaignBudget
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase, GeneratorSource
from fuzzcompile.fuzz.campaign.focus_steering import FocusSource
from fuzzcompile.fuzz.campaign.steering import UNIFORM, Mix, Strategy
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.fuzz.recipe import read_recipe
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.custom import LoadedCustom
from fuzzcompile.model.focus_plan import FocusPlan, FocusWatch
from fuzzcompile.model.judge_task import JUDGE, JudgeResult, JudgeTask
from fuzzcompile.programs.shrink.outcome import MinimizeResult
from fuzzcompile.run.pool.worker_pool import TaskPool

# The settings of a campaign.


@dataclass(frozen=True)
class CampaignSettings:
    """The settings of a campaign.

    Attributes:
        budget: the time or number of cases after which to stop.
        seed: names the stream of cases, with the settings that `stream` lists.
        profile: the generator's settings.
        device: as the user named it, ``auto`` resolved.
        workers: how many cases run at once.
        torch: the installed version.
        vetoes: rewrites to refuse in every case.
        plants: hashes of the files that plant bugs.
        case_seconds: time of one case.
        max_findings: stop after this many new findings.
        minimize_seconds: time of one minimization.
        drafts: folder for issue drafts.
        mix: screen cases, judge them in full, or both.
        strategy: the parameters of steering.
        source: the source of cases; None for the generator under ``profile``.
        target: the device that the compiler is told; None for the one that runs.
        judges: True to judge cases; otherwise only findings of the corpus are minimized.
        custom: the user's own passes and backend.
    """

    budget: CampaignBudget
    seed: int
    profile: Profile
    device: str
    workers: int
    torch: str
    vetoes: tuple[str, ...] = ()
    plants: tuple[str, ...] = ()
    case_seconds: float = 180.0
    max_findings: int | None = None
    minimize_seconds: float = 120.0
    drafts: Path = Path("reports/drafts")
    mix: Mix = "mixed"
    strategy: Strategy = field(default_factory=Strategy)
    source: CaseSource | None = None
    target: str | None = None
    judges: bool = True
    custom: tuple[LoadedCustom, ...] = ()

    @property
    def stream(self) -> str:
        """The key of the seeded sequence of cases, under which the corpus keeps judged indices."""
        drawn = self.case_source.name
        source = f" {drawn}" if drawn else ""
        how = "" if self.mix == "mixed" else f" {self.mix}-only"
        steered = " unsteered" if self.strategy == UNIFORM else ""
        vetoes = "".join(f" veto={name}" for name in sorted(self.vetoes))
        plants = "".join(f" plant={name}" for name in sorted(self.plants))
        own = "".join(f" {loaded.key}" for loaded in self.custom)
        device = self.device.split(":")[0] + (f" target={self.target}" if self.target is not None else "")
        return f"seed={self.seed} torch={self.torch} device={device}{source}{how}{steered}{vetoes}{plants}{own}"

    @property
    def conditions(self) -> dict[str, object]:
        """The settings that change the compiler's own behaviour, as the corpus keeps them."""
        own = {"custom": [loaded.key for loaded in self.custom]} if self.custom else {}
        return {"vetoes": list(self.vetoes), "plants": list(self.plants), **own}

    @property
    def focus(self) -> FocusPlan | None:
        """The plan of the focus; None for a campaign without one."""
        return self.source.plan if isinstance(self.source, FocusSource) else None

    @property
    def case_source(self) -> CaseSource:
        """The source of cases, by default the generator."""
        return self.source if self.source is not None else GeneratorSource(self.profile)


Result = JudgeResult | MinimizeResult
_Task = TypeVar("_Task")

# Seconds that minimizing a finding may take beyond its search, to confirm the reproducer.
_CONFIRMING_SECONDS = 240.0


@dataclass
class CampaignJob:
    """A case that is judged; or, with ``minimizes``, the finding whose case is minimized, and its ``report``.

    ``index`` is the place in the stream (None for a secondary candidate). ``token`` is the same whenever and wherever
    the job is done, so that it is stored once. ``left`` holds the intermediate results that its worker has left so far
    (:func:`fuzzcompile.run.pool.worker.leave`). ``environment`` is the environment of the result, where that is not
    the same for the whole campaign.
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


class JobQueue:
    """Submits jobs to an executor and collects those that have ended; ``campaign`` is its row in the corpus."""

    def __init__(self, settings: CampaignSettings, executor: Executor, campaign: int) -> None:
        self.settings = settings
        self.executor = executor
        self.campaign = campaign
        self._running: dict[Future[Result], CampaignJob] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def capacity(self) -> int:
        """The number of jobs that keep all workers busy; in a cluster it changes as workers come and go."""
        return self.executor.capacity if isinstance(self.executor, TaskPool) else self.settings.workers

    def __iter__(self) -> Iterator[CampaignJob]:
        return iter(self._running.values())

    def judge(
        self,
        case: DrawnCase,
        index: int | None,
        known: Collection[tuple[str, str]],
        *,
        retry: bool = False,
        screen: bool = False,
        proof: float = 1.0,
        not_on: Collection[str] = (),
    ) -> None:
        """Submit a case to be judged.

        Args:
            case: the case.
            index: its place in the stream; None for a secondary candidate.
            known: the signatures and kinds of bug that need no further proof.
            retry: the case has cost a worker before.
            screen: as in `JudgeTask`.
            proof: the share of the usual time that a proof may take.
            not_on: machines on which it would show nothing new (`TaskPool.schedule`).
        """
        job = CampaignJob(case, index, self._make_token(case, index, retry=retry), retry=retry, screen=screen)
        task = JudgeTask(
            path=f"{job.name}.py",
            source=case.source,
            vetoes=self.settings.vetoes,
            known=tuple(sorted(known)),
            seconds=ATTRIBUTION_SHARE * self.settings.case_seconds * proof,
            screen=screen,
            watch=self.settings.focus.watch if self.settings.focus is not None else FocusWatch(),
        )
        label = f"judge #{index}" if index is not None else "judge a secondary candidate"
        self._submit(JUDGE, task, label, job, not_on=not_on)

    def minimize(
        self, finding: str, case: DrawnCase, report: ReportJson, seconds: float, left: Mapping[str, str] | None = None
    ) -> None:
        """Submit the case of a finding to be minimized: a search of about ``seconds``, and its confirmation.

        ``left`` holds the intermediate results of a worker that was lost over it (`MinimizeTask.left`).
        """
        recipe = read_recipe(case.choices, case.spec)
        task = MinimizeTask(case.source, report, recipe, seconds, vetoes=self.settings.vetoes, left=left or {})
        minimizing = CampaignJob(case, None, minimizes=finding, report=report)
        self._submit(MINIMIZE, task, f"minimize {finding}", minimizing, limit=seconds + _CONFIRMING_SECONDS)

    def collect_ended(self, timeout: float) -> Iterator[tuple[Future[Result], CampaignJob]]:
        """Wait for ``timeout`` seconds at most, and yield the jobs that have ended; each is forgotten when yielded."""
        if not self._running:  # a cluster has lost its workers, and others may come
            time.sleep(timeout)
        done, _ = wait(self._running, timeout=timeout, return_when=FIRST_COMPLETED)
        for future in done:
            job = self._running.pop(future)
            if isinstance(self.executor, TaskPool):
                job.environment = self.executor.environment_of(future)
            yield future, job

    def remember(self, future: Future[Result], job: CampaignJob) -> None:
        """Keep a job that no worker could run, so that it is left to the next campaign."""
        self._running[future] = job

    def _make_token(self, case: DrawnCase, index: int | None, *, retry: bool = False) -> str:
        """Return the token of a job: a place is judged once by all campaigns, anything else once by each campaign.

        Another campaign may draw another program at the same place, and judge the same program on another machine.
        """
        place = f"{self.settings.stream} #{index}" if index is not None else f"campaign {self.campaign}"
        return hashlib.sha256(f"{place} {case.sha256} {'again' if retry else 'first'}".encode()).hexdigest()

    def _submit(
        self,
        function: Callable[[_Task], Result],
        task: _Task,
        label: str,
        job: CampaignJob,
        *,
        limit: float | None = None,
        not_on: Collection[str] = (),
    ) -> None:
        if isinstance(self.executor, TaskPool):
            future = self.executor.schedule(
                function, (task,), label=label, time_limit=limit, on_left=job.left.__setitem__, not_on=not_on
            )
        else:
            future = self.executor.submit(function, task)
        self._running[future] = job
