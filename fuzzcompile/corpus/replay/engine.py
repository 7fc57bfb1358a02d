"""Replays of many findings on one torch: each several times, several at a time."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.corpus.records import Replay
from fuzzcompile.corpus.replay.installed import Torch
from fuzzcompile.corpus.replay.process import run_script
from fuzzcompile.corpus.replay.reading import Run, read
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.corpus.replay.subjects import Subject
from fuzzcompile.model.privacy import scrub

_KEPT = 4000  # characters of output that are stored
_WAIT = 0.5


@dataclass(frozen=True)
class Settings:
    """How scripts are run: how often each, for how long, how many at a time, and whether they may see GPUs."""

    runs: int = 3
    timeout: float = 180.0
    jobs: int = 1
    hide_gpus: bool = False


@dataclass(frozen=True)
class Result:
    """What a finding's reproducer did on one torch; ``why`` is in a few words."""

    subject: Subject
    replay: Replay
    why: str


def replay_on(torch: Torch, subjects: Sequence[Subject], settings: Settings) -> Generator[Result, None, None]:
    """Run the reproducers; each result comes as soon as it is believed.

    Kernels are kept for the later runs, in a folder of this call. Graphs are not: each run compiles anew.
    """
    stop, caches = threading.Event(), _Caches()
    executor = ThreadPoolExecutor(settings.jobs, thread_name_prefix="replay")

    def task(subject: Subject) -> Result:
        return _replayed(torch, subject, settings, caches, stop)

    with caches:
        try:
            yield from _as_completed([executor.submit(task, subject) for subject in subjects])
        finally:  # also where the caller goes no further, and on Ctrl-C
            stop.set()
            executor.shutdown(cancel_futures=True)


def judged(runs: Sequence[Run]) -> Status:
    """What several runs show together."""
    statuses = {run.status for run in runs}
    if Status.NOT_RUN in statuses:
        return Status.NOT_RUN
    return statuses.pop() if len(statuses) == 1 else Status.FLAKY


def _replayed(torch: Torch, subject: Subject, settings: Settings, caches: _Caches, stop: threading.Event) -> Result:
    reproducer = subject.reproducer
    if reproducer is None:
        raise ValueError(f"{subject.finding.public_id} has no reproducer")
    runs: list[Run] = []
    seconds = 0.0
    while len(runs) < settings.runs and not any(run.status is Status.NOT_RUN for run in runs):
        with caches.lent() as folder:
            ended = run_script(
                torch.python, reproducer.source, _environment(folder, settings), timeout=settings.timeout, stop=stop
            )
            if ended.status is None or ended.status < 0:  # it may have left a truncated kernel
                shutil.rmtree(folder, ignore_errors=True)
        seconds += ended.seconds
        runs.append(read(ended, subject.expected))
    status = judged(runs)
    decisive = _decisive(runs, status)
    replay = Replay(
        reproducer.sha256,
        torch.version,
        torch.git,
        str(status),
        tuple(str(run.status) for run in runs),
        scrub(decisive.output)[-_KEPT:],
        round(seconds, 2),
    )
    return Result(subject, replay, scrub(decisive.why))


def _decisive(runs: Sequence[Run], status: Status) -> Run:
    """The last run of that status; of a flaky reproducer the last that did not pass."""
    wanted = [run for run in runs if run.status is status] or [run for run in runs if run.status is not Status.FIXED]
    return wanted[-1]


def _environment(cache: Path, settings: Settings) -> dict[str, str]:
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        # Without a pool of compile workers, each of which would import torch.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} if settings.hide_gpus else {}
    return variables | hidden


def _as_completed(futures: Sequence[Future[Result]]) -> Iterator[Result]:
    """Like ``concurrent.futures.as_completed``, and open to Ctrl-C all the time."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=_WAIT, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


class _Caches:
    """Folders for compiled kernels, each lent to one script at a time, so that a killed one spoils only its own."""

    def __enter__(self) -> _Caches:
        self._root = tempfile.mkdtemp(prefix="fuzzcompile-torchinductor-")
        self._free: deque[Path] = deque()
        self._made = 0
        self._lock = threading.Lock()
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    @contextmanager
    def lent(self) -> Iterator[Path]:
        with self._lock:
            if not self._free:
                self._made += 1
                self._free.append(Path(self._root, f"torchinductor-{self._made}"))
            folder = self._free.pop()
        try:
            yield folder
        finally:
            with self._lock:
                self._free.append(folder)
