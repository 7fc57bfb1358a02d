"""What is running on the workers: cases being judged, findings being minimized."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from fuzzcompile.campaign.drawing import Drawn, recipe_of
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.contract import ReportJson
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.pool import WorkerPool
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
    """A case that is judged, or with ``minimizes`` the finding whose case is minimized, and its ``report``.

    ``marker`` is what the worker leaves if it is lost (`JudgeTask.marker`, `MinimizeTask.state`). ``index`` is the
    place in the stream (None for a secondary candidate).
    """

    case: Drawn
    index: int | None
    path: Path
    marker: Path
    started: float = field(default_factory=time.monotonic)
    retry: bool = False
    minimizes: str | None = None
    report: ReportJson | None = None
    screen: bool = False

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started


class Jobs:
    """Submits work to an executor and returns what has ended. The folder of case files goes when the block ends."""

    def __init__(self, settings: CampaignSettings, executor: Executor) -> None:
        self.settings = settings
        self.executor = executor
        self._folder = tempfile.TemporaryDirectory(prefix="fuzzcompile-")
        self._running: dict[Future[Result], Job] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the case files."""
        self._folder.cleanup()

    def __len__(self) -> int:
        return len(self._running)

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
    ) -> None:
        """Have a case judged; ``known`` are the signatures and kinds of bug that need no further proof."""
        path, marker = self._paths(case, "again" if retry else "eager")
        try:
            path.write_text(case.source, encoding="utf-8")
        except OSError as error:
            raise EnvironmentUnfit(
                f"A case cannot be written to {path.parent} ({error.strerror}): make room there, or set TMPDIR."
            ) from error
        task = JudgeTask(
            path=str(path),
            vetoes=self.settings.vetoes,
            marker=str(marker),
            known=tuple(sorted(known)),
            seconds=ATTRIBUTION_SHARE * self.settings.case_seconds,
            screen=screen,
            watch=self.settings.focus.watch if self.settings.focus is not None else Watch(),
        )
        label = f"judge #{index}" if index is not None else "judge a secondary candidate"
        self._submit(JUDGE, task, label, Job(case, index, path, marker, retry=retry, screen=screen))

    def minimize(self, finding: str, case: Drawn, report: ReportJson, seconds: float) -> None:
        """Have the case of a finding minimized: a search of about ``seconds``, and its end."""
        choices, profile = recipe_of(case.choices, case.spec)
        path, state = self._paths(case, f"{finding}.state")
        task = MinimizeTask(
            case.source, report, choices, profile, seconds, vetoes=self.settings.vetoes, state=str(state)
        )
        minimizing = Job(case, None, path, state, minimizes=finding, report=report)
        self._submit(MINIMIZE, task, f"minimize {finding}", minimizing, limit=seconds + _CONFIRMING_SECONDS)

    def ended(self, timeout: float) -> list[tuple[Future[Result], Job]]:
        """Wait for ``timeout`` seconds at most; return what has ended, and forget it."""
        done, _ = wait(self._running, timeout=timeout, return_when=FIRST_COMPLETED)
        return [(future, self._running.pop(future)) for future in done]

    def _paths(self, case: Drawn, ending: str = "eager") -> tuple[Path, Path]:
        """The file of a case and its marker (`JudgeTask.marker`)."""
        path = Path(self._folder.name, f"case_{case.sha256[:12]}.py")
        return path, path.with_suffix(f".{ending}")

    def _submit(
        self, function: Callable[[Task], Result], task: Task, label: str, job: Job, *, limit: float | None = None
    ) -> None:
        if isinstance(self.executor, WorkerPool):
            future = self.executor.schedule(function, (task,), label=label, time_limit=limit)
        else:
            future = self.executor.submit(function, task)
        self._running[future] = job
