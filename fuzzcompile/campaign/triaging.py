"""Triage of case files in worker processes, in the order given."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.campaign.pool import ATTRIBUTION_SHARE, Limits, open_pool
from fuzzcompile.errors import CaseError, EnvironmentUnfit, FuzzcompileError
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.pool import WorkerFailed, WorkerPool, WorkerStartFailed, WorkerTimeout
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.plants import check_plants
from fuzzcompile.report import SCHEMA, worker_failure
from fuzzcompile.work import Judged, JudgeTask, judge_file, left_behind


@dataclass(frozen=True)
class Answer:
    """What triage has to say of one file: a report (contract form), an error, or both."""

    path: Path
    report: dict[str, Any] | None
    error: str | None = None
    status: int = 0

    def to_json(self) -> dict[str, Any]:
        """The report, or where there is none an object that says why (``verdict`` null)."""
        if self.report is not None:
            return self.report
        return {
            "schema": SCHEMA,
            "case": self.path.stem,
            "verdict": None,
            "is_bug": False,
            "error": self.error,
        }


def case_files(paths: Sequence[Path]) -> list[Path]:
    """The files that ``paths`` name: files as they are, folders and globs as their Python files in order.

    Raises:
        CaseError: a path names nothing.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.glob("*.py") if not p.name.startswith("_"))
        elif path.exists():
            found = [path]
        else:
            found = sorted(Path(name) for name in glob.glob(str(path)) if name.endswith(".py"))  # noqa: PTH207
        if not found:
            raise CaseError(f"{path} names no case: give a Python file, a folder of them, or a glob.")
        files += found
    return files


def triage_files(
    files: Sequence[Path],
    *,
    device: str = "auto",
    vetoes: tuple[str, ...] = (),
    plants: Sequence[Path] = (),
    limits: Limits | None = None,
    workers: int = 1,
) -> Iterator[Answer]:
    """Judge the files and yield an answer for each, in order.

    Raises:
        UsageError: a plant cannot be used.
        EnvironmentUnfit: there is no such device, or no worker can be started.
    """
    check_plants(plants)
    limits = limits or Limits()
    resolved = str(resolve(device))
    with (
        tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder,
        open_pool(device, workers, plants=plants, limits=limits) as pool,
    ):
        tasks = [
            JudgeTask(
                str(path), vetoes, str(Path(folder) / f"{number}.eager"), seconds=ATTRIBUTION_SHARE * limits.seconds
            )
            for number, path in enumerate(files)
        ]
        futures = [_submit(pool, task) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            yield _answer(pool, task, future, resolved)


def _submit(pool: WorkerPool, task: JudgeTask) -> Future[Judged]:
    return pool.schedule(judge_file, (task,), label=f"judge {Path(task.path).name}")


def _answer(pool: WorkerPool, task: JudgeTask, future: Future[Judged], device: str, *, again: bool = False) -> Answer:
    path, marker = Path(task.path), Path(task.marker or "")
    try:
        report = future.result().report
    except FuzzcompileError as error:
        return Answer(path, None, str(error), error.exit_status)
    except WorkerStartFailed as error:
        raise EnvironmentUnfit(f"No worker can be started: {error}. Run `fuzzcompile doctor`.") from error
    except WorkerFailed as error:
        eager_done, found = left_behind(marker)
        if found is not None:
            found["detail"] = f"{found['detail']}; attribution {error}".lstrip("; ")
            return Answer(path, found, status=1)
        if not eager_done:
            return Answer(
                path, None, f"{path} could not be judged: eager itself {error}; raise --timeout or --memory.", 3
            )
        if not again:  # a crash or time-out is believed when it comes twice
            marker.unlink()
            return _answer(pool, task, _submit(pool, task), device, again=True)
        verdict = Verdict.TIMEOUT if isinstance(error, WorkerTimeout) else Verdict.CRASH
        return Answer(
            path, worker_failure(path.stem, torch.__version__, device, verdict, str(error)).to_json(), status=1
        )
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return Answer(path, None, f"{path} could not be judged: {type(error).__name__}: {text}", 3)
    return Answer(path, report, status=1 if report["is_bug"] else 0)


def overall_status(answers: Sequence[Answer]) -> int:
    """3 if any file could not be judged, else 2 if any is no case, else 1 if any is a bug, else 0."""
    return max((answer.status for answer in answers), default=0)
