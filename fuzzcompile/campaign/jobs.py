"""The jobs that run on the workers: cases being judged, findings being minimized."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

from fuzzcompile.campaign.drawing import Drawn, recipe_of
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.contract import ReportJson
from fuzzcompile.execution.task_pool import TaskPool
from fuzzcompile.focusing.plan import Watch
from fuzzcompile.worker.pool import ATTRIBUTION_SHARE
from fuzzcompile.worker.reductions import MINIMIZE, Minimized, MinimizeTask
from fuzzcompile.worker.tasks import JUDGE, Judged, JudgeTask

Result = Judged | Minimized
Task = TypeVar("Task")

# Seconds that minimizing a finding may take beyond its search, to confirm the reproducer.
_CONFIRMING_SECONDS = 240.0


@dataclass
class Job:
    """A case that is judged; or, with ``minimizes``, the finding whose case is minimized, and its ``report``.

    ``index`` is the place in the stream (None for a secondary candidate). ``token`` is the same whenever and wherever
    the job is done, so that it is stored once. ``left`` holds the intermediate results that its worker has left so far
    (:func:`fuzzcompile.execution.worker.leave`). ``environment`` is the environment of the result, where that is not
    the same for the whole campaign.
    """

    case: Drawn
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


class Jobs:
    """Submits jobs to an executor and collects those that have ended; ``campaign`` is its row in the corpus."""

    def __init__(self, settings: CampaignSettings, executor: Executor, campaign: int) -> None:
        self.settings = settings
        self.executor = executor
        self.campaign = campaign
        self._running: dict[Future[Result], Job] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def capacity(self) -> int:
        """The number of jobs that keep all workers busy; in a cluster it changes as workers come and go."""
        return self.executor.capacity if isinstance(self.executor, TaskPool) else self.settings.workers

    def __iter__(self) -> Iterator[Job]:
        return iter(self._running.values())

    def judge(
        self,
        case: Drawn,
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
        job = Job(case, index, self._token(case, index, retry=retry), retry=retry, screen=screen)
        task = JudgeTask(
            path=f"{job.name}.py",
            source=case.source,
            vetoes=self.settings.vetoes,
            known=tuple(sorted(known)),
            seconds=ATTRIBUTION_SHARE * self.settings.case_seconds * proof,
            screen=screen,
            watch=self.settings.focus.watch if self.settings.focus is not None else Watch(),
        )
        label = f"judge #{index}" if index is not None else "judge a secondary candidate"
        self._submit(JUDGE, task, label, job, not_on=not_on)

    def minimize(
        self, finding: str, case: Drawn, report: ReportJson, seconds: float, left: Mapping[str, str] | None = None
    ) -> None:
        """Submit the case of a finding to be minimized: a search of about ``seconds``, and its confirmation.

        ``left`` holds the intermediate results of a worker that was lost over it (`MinimizeTask.left`).
        """
        choices, profile = recipe_of(case.choices, case.spec)
        task = MinimizeTask(
            case.source, report, choices, profile, seconds, vetoes=self.settings.vetoes, left=left or {}
        )
        minimizing = Job(case, None, minimizes=finding, report=report)
        self._submit(MINIMIZE, task, f"minimize {finding}", minimizing, limit=seconds + _CONFIRMING_SECONDS)

    def ended(self, timeout: float) -> Iterator[tuple[Future[Result], Job]]:
        """Wait for ``timeout`` seconds at most, and yield the jobs that have ended; each is forgotten when yielded."""
        if not self._running:  # a cluster has lost its workers, and others may come
            time.sleep(timeout)
        done, _ = wait(self._running, timeout=timeout, return_when=FIRST_COMPLETED)
        for future in done:
            job = self._running.pop(future)
            if isinstance(self.executor, TaskPool):
                job.environment = self.executor.environment_of(future)
            yield future, job

    def remember(self, future: Future[Result], job: Job) -> None:
        """Keep a job that no worker could run, so that it is left to the next campaign."""
        self._running[future] = job

    def _token(self, case: Drawn, index: int | None, *, retry: bool = False) -> str:
        """Return the token of a job: a place is judged once by all campaigns, anything else once by each campaign.

        Another campaign may draw another program at the same place, and judge the same program on another machine.
        """
        place = f"{self.settings.stream} #{index}" if index is not None else f"campaign {self.campaign}"
        return hashlib.sha256(f"{place} {case.sha256} {'again' if retry else 'first'}".encode()).hexdigest()

    def _submit(
        self,
        function: Callable[[Task], Result],
        task: Task,
        label: str,
        job: Job,
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
