"""How far a case has come, kept for the loss of its worker or of its GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.focus_plan import FocusObservation
from fuzzcompile.model.tasks import Judged, JudgeTask
from fuzzcompile.programs.casefiles.case_file import CaseFile
from fuzzcompile.triage.triage_report import Report
from fuzzcompile.triage.worker.leaving import leave_eager, leave_report


@dataclass
class Progress:
    """How far a case came: whether eager has finished, and the report so far.

    Attributes:
        task: what is asked; how far it came is left for the case that the worker is lost.
        file: what the case was loaded from, once it was read.
        seen: what the judged compile showed of the task's focus.
    """

    task: JudgeTask
    file: CaseFile | None = None
    eager_done: bool = False
    report: Report | None = None
    seen: FocusObservation = field(default_factory=FocusObservation)

    def eager_finished(self) -> None:
        """Eager mode has run."""
        self.eager_done = True
        leave_eager()

    def verdict_reached(self, report: Report) -> None:
        """There is a verdict; of a contract, nothing is known yet."""
        self.report = report
        if self.task.contract == "bitwise":
            from fuzzcompile.triage.bitwise.promises import make_unjudged_contract

            report = replace(report, confidence="low", contract=make_unjudged_contract("the worker was lost"))
        leave_report(self.answer(report))

    def answer(self, report: Report) -> ReportJson:
        """The report in its JSON form, with places as a user knows them."""
        plain = cast(ReportJson, report.to_json())
        return plain if self.file is None else self.file.locate(plain)

    def without_gpu(self, why: str, error: Exception) -> Judged:
        """The verdict that was reached before the GPU was lost.

        Raises:
            EnvironmentUnfit: there was none.
        """
        if self.report is not None:
            detail = "; ".join(part for part in (self.report.detail, f"what came after the verdict: {why}") if part)
            report = replace(self.report, confidence="low", detail=detail)
            return Judged(self.answer(report), report.coverage, report.screened, seen=self.seen)
        when = "while it was judged" if self.eager_done else "in eager mode"
        raise EnvironmentUnfit(
            f"{self.task.path} could not be judged: {why}, {when}, and no run can follow in that process; mend the "
            "program (an index out of range?), or run it with CUDA_LAUNCH_BLOCKING=1 to see where."
        ) from error
