"""Triage of case files in worker processes, in the order given."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.campaign.pool import Limits, open_pool
from fuzzcompile.errors import CaseError, EnvironmentUnfit, FuzzcompileError
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.pool import WorkerFailed, WorkerStartFailed, WorkerTimeout
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.plants import check_plants
from fuzzcompile.report import SCHEMA, worker_failure
from fuzzcompile.work import JudgeTask, judge_file


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
    resolved = str(resolve(device))
    with (
        tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder,
        open_pool(device, workers, plants=plants, limits=limits) as pool,
    ):
        jobs = []
        for number, path in enumerate(files):
            marker = Path(folder) / f"{number}.eager"
            task = JudgeTask(str(path), vetoes, str(marker))
            jobs.append((path, marker, pool.schedule(judge_file, (task,), label=f"judge {path.name}")))
        for path, marker, future in jobs:
            try:
                report = future.result().report
                yield Answer(path, report, status=1 if report["is_bug"] else 0)
            except FuzzcompileError as error:
                yield Answer(path, None, str(error), error.exit_status)
            except WorkerStartFailed as error:
                raise EnvironmentUnfit(f"No worker can be started: {error}.") from error
            except WorkerFailed as error:
                yield _lost(path, marker, resolved, error)


def overall_status(answers: Sequence[Answer]) -> int:
    """3 if any file could not be judged, else 2 if any is no case, else 1 if any is a bug, else 0."""
    return max((answer.status for answer in answers), default=0)


def _lost(path: Path, marker: Path, device: str, error: WorkerFailed) -> Answer:
    """A crash or time-out is the compiler's only if eager had finished within its limits."""
    if not marker.exists():
        return Answer(path, None, f"{path} could not be judged: eager itself {error}; raise --timeout or --memory.", 3)
    verdict = Verdict.TIMEOUT if isinstance(error, WorkerTimeout) else Verdict.CRASH
    report = worker_failure(path.stem, torch.__version__, device, verdict, str(error))
    return Answer(path, report.to_json(), status=1)
