"""What can be varied of a user's own case, found in a worker."""

from __future__ import annotations

from fuzzcompile.execution.worker import current_device
from fuzzcompile.variations import Survey, survey


def survey_file(path: str) -> Survey:
    """The survey of the case file at ``path`` on this worker's device.

    Raises:
        CaseError: it is not a case file, or fails in eager mode.
    """
    return survey(path, current_device())
