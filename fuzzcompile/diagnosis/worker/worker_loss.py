"""Verdicts and reports on a case whose worker was lost: one rule for campaigns, triage and minimization."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import cast

from fuzzcompile.diagnosis.worker.minimize_task import ASKING
from fuzzcompile.model import hints
from fuzzcompile.model.contract import ReportJson, TargetJson
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.model.lost_worker import report_worker_failure
from fuzzcompile.model.thresholds import BUSY_LOAD
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.pool.worker import (
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerStartFailed,
    WorkerTimeout,
    leave,
)

# Progress of a case, left by a judging worker in case it is lost. Imports no torch.

EAGER, _REPORT = "eager", "report"


def leave_eager() -> None:
    """Leave word that eager mode has finished: the compiler is to blame for any later loss of this worker."""
    leave(EAGER, "")


def leave_report(report: ReportJson) -> None:
    """Leave the report once there is a verdict: a later loss of this worker does not cost the finding."""
    leave(_REPORT, json.dumps(report))


def read_left(left: Mapping[str, str]) -> tuple[bool, ReportJson | None]:
    """Read the progress of a case that a worker had left (`fuzzcompile.run.pool.worker.WorkerFailed.left`).

    Returns:
        Whether eager had finished, and the report if there was a verdict.
    """
    report = left.get(_REPORT)
    return EAGER in left or report is not None, None if report is None else cast(ReportJson, json.loads(report))


class LossMeaning(Enum):
    """Meaning of the loss of a judging worker for its case; the value says it in a report's detail."""

    VERDICT = "what came after the verdict"
    EARLY = "before eager had finished"
    MEMORY = "its memory ran out, for which our own copies may be to blame"
    SLOW = "interpreted kernels are slow"
    BUSY = "the machine had more to do than it has processors"
    ONCE = "seen once"
    TWICE = "seen twice"


def weigh_loss(loss: WorkerFailed, target: str | None, *, again: bool) -> tuple[LossMeaning, ReportJson | None]:
    """The meaning of a loss, and the report that was left: the compiler is to blame for what happens ``TWICE`` alone.

    ``again`` says that the case had lost a worker before; one that is lost ``ONCE`` is to be judged again.
    """
    eager_done, report = read_left(loss.left)
    if report is not None:
        if report["is_bug"] and report["culprit"] is None:
            report["confidence"] = "low"  # nothing was proved, and part of what was to be looked at was not
        return LossMeaning.VERDICT, report
    if not eager_done:
        return LossMeaning.EARLY, None
    if isinstance(loss, WorkerOutOfMemory):
        return LossMeaning.MEMORY, None
    if target is not None and isinstance(loss, WorkerTimeout):
        return LossMeaning.SLOW, None
    if isinstance(loss, WorkerTimeout) and loss.load > BUSY_LOAD:
        return LossMeaning.BUSY, None
    return LossMeaning.TWICE if again else LossMeaning.ONCE, None


def choose_loss_verdict(loss: WorkerFailed) -> Verdict:
    """The verdict on a program whose compilation cost its worker: ``timeout`` or ``crash``."""
    return Verdict.TIMEOUT if isinstance(loss, WorkerTimeout) else Verdict.CRASH


def make_loss_report(
    loss: WorkerFailed, case: str, torch_version: str, device: str, target: str | None = None
) -> ReportJson:
    """The report on the case called ``case``; it holds only if eager had finished (`left_behind`)."""
    report = report_worker_failure(case, torch_version, device, choose_loss_verdict(loss), str(loss), loss.output)
    return {**report, "target": make_unexamined_target(target)}


def is_cut_off(loss: WorkerFailed) -> bool:
    """Return whether the worker was lost with its line or its machine: the state of its task is then unknown."""
    return isinstance(loss, WorkerCrashed) and loss.exit_code is None


def drop_blame(left: Mapping[str, str]) -> dict[str, str]:
    """Keep those entries of `WorkerFailed.left` that still hold where the worker was lost with its machine.

    That says nothing against the compiler, which was running, nor against the question that was being asked.
    """
    return {name: text for name, text in left.items() if name not in (EAGER, ASKING)}


def make_unexamined_target(target: str | None) -> TargetJson | None:
    """Return a report's entry for a target none of whose stages was examined to its end; None without a target."""
    return None if target is None else {"device": target, "stages": {}, "confirmed_on_device": False}


def make_start_error(error: WorkerStartFailed) -> FuzzcompileError:
    """The error for the user where a pool cannot start a worker: what its initializer says, if that is for a user."""
    if isinstance(error.__cause__, FuzzcompileError):
        return error.__cause__
    return EnvironmentUnfit(f"No worker can be started: {error}. Run `{hints.format_command('doctor')}`.")
