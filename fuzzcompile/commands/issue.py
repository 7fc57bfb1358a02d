"""The facts behind the issue draft of a case file that is in no corpus."""

from __future__ import annotations

from pathlib import Path

from fuzzcompile import hints
from fuzzcompile.casefiles import read_case_file
from fuzzcompile.commands.minimize import Subject, minimize, report_on_file
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.environment import describe
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.worker.conditions import Conditions

# The draft needs a reproducer, and its reader waits for it.
_SECONDS = 60.0


def facts_of_file(path: Path, conditions: Conditions) -> IssueFacts:
    """Judge the case file, and minimize it if it shows a bug.

    Raises:
        CaseError: the file is not a case.
        EnvironmentUnfit: it could not be judged, or no worker can be started.
    """
    report = report_on_file(path, conditions)
    subject = hints.Named(str(path), conditions.options())
    environment = describe(resolve(conditions.device), conditions.target)
    if not report["is_bug"]:
        return IssueFacts(report, None, environment, subject=subject)
    small = minimize(Subject(read_case_file(path).source, report), conditions, seconds=_SECONDS, for_issue=True)
    return IssueFacts(
        small.report,
        small.reproducer,
        environment,
        hits=1,
        confirmed=small.confirmed,
        shown=small.shown or {},
        subject=subject,
    )
