"""What the loss of a worker says about the case that it ran: one rule for campaigns, triage and minimization."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from fuzzcompile.model import hints
from fuzzcompile.model.contract import ReportJson, TargetJson
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.model.lost_worker import report_worker_failure
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.pool.worker import WorkerCrashed, WorkerFailed, WorkerStartFailed, WorkerTimeout, leave
from fuzzcompile.triage.worker.minimize_task import ASKING

# What a worker that judges leaves for the case that it is lost: how far the case has come. Imports no torch.

EAGER, _REPORT = "eager", "report"


def leave_eager() -> None:
    """Eager mode has finished: what takes this worker down from now on is the compiler's."""
    leave(EAGER, "")


def leave_report(report: ReportJson) -> None:
    """There is a verdict: what comes after it may cost this worker, and not the finding."""
    leave(_REPORT, json.dumps(report))


def read_left(left: Mapping[str, str]) -> tuple[bool, ReportJson | None]:
    """What a worker had already left of a case (`fuzzcompile.run.pool.worker.WorkerFailed.left`).

    Returns:
        Whether eager had finished, and the report if there was a verdict.
    """
    report = left.get(_REPORT)
    return EAGER in left or report is not None, None if report is None else cast(ReportJson, json.loads(report))


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
    """Whether the worker was lost with its line or its machine: nobody knows what it was doing, whatever it wrote."""
    return isinstance(loss, WorkerCrashed) and loss.exit_code is None


def drop_blame(left: Mapping[str, str]) -> dict[str, str]:
    """What still holds of what a worker left (`WorkerFailed.left`) that was lost with its machine.

    That says nothing against the compiler, which was running, nor against the question that was being asked.
    """
    return {name: text for name, text in left.items() if name not in (EAGER, ASKING)}


def make_unexamined_target(target: str | None) -> TargetJson | None:
    """What a report says of a target of which no stage was looked at to its end; None without a target."""
    return None if target is None else {"device": target, "stages": {}, "confirmed_on_device": False}


def make_start_error(error: WorkerStartFailed) -> FuzzcompileError:
    """The error for the user where a pool cannot start a worker: what its initializer says, if that is for a user."""
    if isinstance(error.__cause__, FuzzcompileError):
        return error.__cause__
    return EnvironmentUnfit(f"No worker can be started: {error}. Run `{hints.format_command('doctor')}`.")
