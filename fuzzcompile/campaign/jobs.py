"""What is under way on the workers: cases being judged, findings being made small."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fuzzcompile.campaign.drawing import Drawn
from fuzzcompile.campaign.pool import ATTRIBUTION_SHARE
from fuzzcompile.campaign.settings import CampaignSettings
from fuzzcompile.corpus import severity
from fuzzcompile.worker.judge import JudgeTask, ShrinkTask, judge_file, shrink

# What making a finding small may take beyond its time, to confirm what it came to.
_CONFIRMING_SECONDS = 240.0


@dataclass
class Job:
    """Something under way: a case that is judged, or with ``shrinks`` a finding that is made small."""

    case: Drawn
    index: int | None
    path: Path
    marker: Path
    started: float = field(default_factory=time.monotonic)
    retry: bool = False
    shrinks: str | None = None
    severity: int = 0
    screen: bool = False

    @property
    def seconds(self) -> float:
        """How long it has been under way."""
        return time.monotonic() - self.started


class Jobs:
    """Gives work to an executor and hands back what has ended. Case files lie in a folder that goes with the block."""

    def __init__(self, settings: CampaignSettings, executor: Executor) -> None:
        self.settings = settings
        self.executor = executor
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._under_way: dict[Future[Any], Job] = {}

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="fuzzcompile-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the case files."""
        assert self._folder is not None
        self._folder.cleanup()

    def __len__(self) -> int:
        return len(self._under_way)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._under_way.values())

    def judge(
        self,
        case: Drawn,
        index: int | None,
        known: Collection[tuple[str, str]],
        *,
        retry: bool = False,
        screen: bool = False,
    ) -> None:
        """Have a case judged. Signatures and kinds of bug that are ``known`` need no proof of their own."""
        assert self._folder is not None, "work is given out within the block"
        path = Path(self._folder.name, f"case_{case.sha256[:12]}.py")
        path.write_text(case.source, encoding="utf-8")
        marker = path.with_suffix(f".{'again' if retry else 'eager'}")
        task = JudgeTask(
            str(path),
            self.settings.vetoes,
            str(marker),
            tuple(sorted(known)),
            ATTRIBUTION_SHARE * self.settings.case_seconds,
            screen=screen,
        )
        label = f"judge #{index}" if index is not None else "judge a by-catch"
        self._submit(judge_file, task, label, Job(case, index, path, marker, retry=retry, screen=screen))

    def shrink(self, finding: str, job: Job, report: Mapping[str, Any], seconds: float) -> None:
        """Have the case of a judged job made small, in about so many seconds."""
        task = ShrinkTask(
            job.case.source,
            dict(report),
            job.case.choices or None,
            self.settings.profile,
            seconds,
            vetoes=self.settings.vetoes,
        )
        shrinking = Job(job.case, job.index, job.path, job.marker, shrinks=finding, severity=severity(report))
        self._submit(shrink, task, f"minimise {finding}", shrinking, limit=seconds + _CONFIRMING_SECONDS)

    def ended(self, timeout: float) -> list[tuple[Future[Any], Job]]:
        """What has ended, after ``timeout`` seconds at most; it is under way no longer."""
        done, _ = wait(self._under_way, timeout=timeout, return_when=FIRST_COMPLETED)
        return [(future, self._under_way.pop(future)) for future in done]

    def _submit(
        self, function: Callable[[Any], Any], task: Any, label: str, job: Job, *, limit: float | None = None
    ) -> None:
        schedule = getattr(self.executor, "schedule", None)
        if schedule is None:
            future: Future[Any] = self.executor.submit(function, task)
        else:
            future = schedule(function, (task,), label=label, time_limit=limit)
        self._under_way[future] = job
