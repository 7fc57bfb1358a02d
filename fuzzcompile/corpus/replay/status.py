"""What a reproducer that was run again may show."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The result of one run of a reproducer, or of several; the values are the words of the JSON contract."""

    FAILING = "failing"
    """It shows the bug that it was made for."""
    FIXED = "fixed"
    """It runs, and shows no bug."""
    DIFFERENT = "fails differently"
    """The compiled program fails, and not in the way for which the reproducer was made."""
    ERRORED = "errored"
    """It gives no answer: eager fails, an import fails, the machine has no compiler."""
    FLAKY = "flaky"
    """Its runs disagree."""
    NOT_AFFECTED = "not affected"
    """It passes on a torch that is older than all those where it fails."""
    NOT_RUN = "not run"
    """It needs a device that is not there."""
    NOT_REPLAYABLE = "not replayable"
    """There is no script, or one that does not say whether the bug shows."""
