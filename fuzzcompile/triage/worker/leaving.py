"""What a worker that judges leaves for the case that it is lost: how far the case has come. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.run.worker import leave

EAGER, _REPORT = "eager", "report"


def leave_eager() -> None:
    """Eager mode has finished: what takes this worker down from now on is the compiler's."""
    leave(EAGER, "")


def leave_report(report: ReportJson) -> None:
    """There is a verdict: what comes after it may cost this worker, and not the finding."""
    leave(_REPORT, json.dumps(report))


def left_behind(left: Mapping[str, str]) -> tuple[bool, ReportJson | None]:
    """What a worker had already left of a case (`fuzzcompile.run.failures.WorkerFailed.left`).

    Returns:
        Whether eager had finished, and the report if there was a verdict.
    """
    report = left.get(_REPORT)
    return EAGER in left or report is not None, None if report is None else cast(ReportJson, json.loads(report))
