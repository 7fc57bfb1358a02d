"""The facts behind the issue draft of a case file that is in no corpus."""

from __future__ import annotations

from pathlib import Path

from fuzzcompile.front.commands.minimize import MinimizeSubject, judge_case_file, minimize
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.programs.casefiles.case_file import read_case_file
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.run.device import resolve
from fuzzcompile.run.environment import describe

# The draft needs a reproducer, and its reader waits for it.
_SECONDS = 60.0


def collect_file_facts(path: Path, conditions: Conditions) -> IssueFacts:
    """Judge the case file, and minimize it if it shows a bug.

    Raises:
        CaseError: the file is not a case.
        EnvironmentUnfit: it could not be judged, or no worker can be started.
    """
    report = judge_case_file(path, conditions)
    subject = hints.CommandSubject(str(path), conditions.options())
    environment = describe(resolve(conditions.device), conditions.target)
    if not report["is_bug"]:
        return IssueFacts(report, None, environment, subject=subject)
    small = minimize(MinimizeSubject(read_case_file(path).source, report), conditions, seconds=_SECONDS, for_issue=True)
    return IssueFacts(
        small.report,
        small.reproducer,
        environment,
        hits=1,
        confirmed=small.confirmed,
        shown=small.shown or {},
        subject=subject,
    )
