"""The search for what takes a process down, in a worker: one trial, or the report that the trials so far prove."""

from __future__ import annotations

import torch

from fuzzcompile.compiler.compile_changes import Veto
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.diagnosis.loss_attributor import LossAblator, TrialMade, attribute_loss
from fuzzcompile.diagnosis.oracle.judgement import Judgement
from fuzzcompile.diagnosis.triage_report import Cost, TriageReport
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.worker.judge import open_case
from fuzzcompile.diagnosis.worker.worker_loss import leave_eager, leave_trial
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.judge_task import LossTask, LossTrial
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.observation import Failure, Observation
from fuzzcompile.run.pool.worker import get_current_device


def try_next(task: LossTask) -> LossTrial | ReportJson:
    """Make the next trial of a search; the report, where none is left to make.

    Raises:
        CaseError: the case cannot be made.
    """
    device, judged = torch.device(get_current_device()), task.judged
    with open_case(judged, device) as (file, case):
        how = Compilation((Veto(judged.vetoes),))
        experiments = Experiments(case, device, how, against=judged.against, tolerances=judged.tolerances)
        lost = Judgement(Verdict(task.report["verdict"]))
        ablator = LossAblator(
            experiments,
            Trial(experiments.how, Observation(), lost, Ledger(), 0.0),
            made=task.trials,
            is_over=task.is_over,
            announce=_announce,
        )
        try:
            attribution, note = attribute_loss(ablator, task.report["culprit"])
        except TrialMade as made:
            return made.trial
    culprit, detail = attribution.culprit, task.report["detail"]
    sure = culprit is not None and culprit.necessary and culprit.confidence == "high"
    report = TriageReport(
        task.report["case"],
        task.report["torch"],
        task.report["device"],
        lost.verdict,
        "high" if sure else "low",
        detail,
        failure=Failure(str(lost.verdict), detail, "compile"),
        attribution=attribution,
        cost=Cost(len(task.trials), 0, 0.0),
        notes=() if note is None else (note,),
    )
    return file.locate(report.to_json())


def _announce(change: str) -> None:
    leave_eager()
    leave_trial(change)
