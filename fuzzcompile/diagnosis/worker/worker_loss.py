"""Verdicts and reports on a case whose worker was lost: one rule for campaigns, triage and minimization."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import cast

from fuzzcompile.diagnosis.worker.minimize_task import ASKING
from fuzzcompile.model import hints
from fuzzcompile.model.contract import ReportJson, TargetJson
from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError
from fuzzcompile.model.judge_task import TRY_LOSS, JudgeTask, LossTask, LossTrial
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
from fuzzcompile.run.pool.worker_pool import TaskPool

# Progress of a case, left by a judging worker in case it is lost. Imports no torch.

EAGER, _REPORT, _TRIAL = "eager", "report", "trial"


def leave_eager() -> None:
    """Leave word that eager mode has finished: the compiler is to blame for any later loss of this worker."""
    leave(EAGER, "")


def leave_report(report: ReportJson) -> None:
    """Leave the report once there is a verdict: a later loss of this worker does not cost the finding."""
    leave(_REPORT, json.dumps(report))


def leave_trial(change: str) -> None:
    """Leave word of the changed compile that is tried next: it may take this worker down, as the case did before."""
    leave(_TRIAL, change)


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


# The search for what takes a process down: each trial in a worker of its own, so that none inherits broken memory.

_MOST_TRIALS = 16
# A trial that hangs like its case is given up after this share of the case's time.
_HANG_SHARE = 1 / 8


def attribute_loss(pool: TaskPool, judged: JudgeTask, report: ReportJson, seconds: float) -> ReportJson:
    """The report on a lost worker with the part of the compiler without which none is lost, as far as one is found.

    It is looked for during ``seconds``, by compiles of the case under one change each, in fresh workers of the pool.
    """
    task, started, unclear = LossTask(judged, report), time.monotonic(), 0
    limit = seconds * (_HANG_SHARE if report["verdict"] == Verdict.TIMEOUT else 1.0)
    while True:
        left = seconds - (time.monotonic() - started)
        task = replace(task, is_over=task.is_over or left <= 0 or len(task.trials) >= _MOST_TRIALS)
        allowed = None if task.is_over else min(left, limit)
        label = f"look for what takes {report['case']} down"
        try:
            said = pool.schedule(TRY_LOSS, (task,), label=label, spends=True, time_limit=allowed).result()
        except Exception as error:  # whatever it is, there is a report already
            if task.is_over:
                return report
            cut_short = isinstance(error, WorkerTimeout) and allowed != limit
            trial = None if cut_short else _read_lost_trial(error)
            unclear += trial is None  # such a loss says nothing, and is not seen twice if it is by chance
            if trial is not None:
                task = replace(task, trials=(*task.trials, trial))
            elif cut_short or unclear > 1:
                task = replace(task, is_over=True)
            continue
        if isinstance(said, LossTrial):
            task = replace(task, trials=(*task.trials, said))
            continue
        said["cost"]["seconds"] = round(time.monotonic() - started, 3)
        if said["culprit"] is None:  # then the stack says more
            said = {**said, "culprit": report["culprit"], "signature": report["signature"]}
        return {**report, **said, "target": report["target"]}


def _read_lost_trial(error: Exception) -> LossTrial | None:
    """The trial that took its worker down; None if the compiler is not to blame for that."""
    if not isinstance(error, WorkerFailed) or is_cut_off(error) or _TRIAL not in error.left:
        return None
    if weigh_loss(error, None, again=True)[0] is not LossMeaning.TWICE:
        return None
    return LossTrial(error.left[_TRIAL], str(choose_loss_verdict(error)))
