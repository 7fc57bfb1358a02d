"""The issue draft of a case file that is in no corpus."""

from __future__ import annotations

from pathlib import Path

from fuzzcompile.commands.minimize import minimize, subject_of_file
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.environment import describe
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.issue import draft_issue
from fuzzcompile.worker.conditions import Conditions

# The draft needs a reproducer, and its reader waits for it.
_SECONDS = 60.0


def draft_of_file(path: Path, conditions: Conditions) -> str | None:
    """Judge and minimize the case file, and draft its issue in Markdown; None if it shows no bug.

    Raises:
        CaseError: the file is not a case.
        EnvironmentUnfit: it could not be judged, or no worker can be started.
    """
    subject = subject_of_file(path, None, conditions)
    if subject is None:
        return None
    minimized = minimize(subject, conditions, seconds=_SECONDS)
    environment = describe(resolve(conditions.device), conditions.target)
    return draft_issue(
        IssueFacts(minimized.report, minimized.reproducer, environment, hits=1, confirmed=minimized.confirmed)
    )
