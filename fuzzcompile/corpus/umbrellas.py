"""Groups of findings that one issue stands for."""

from __future__ import annotations

from fuzzcompile.model.severity import Severity
from fuzzcompile.model.signatures import parse_stage

VALIDATION = "validation"
LAYOUT = "layout"


def umbrella_of(severity: str | None, signature: str) -> str | None:
    """The group of a finding, None for one that stands alone.

    What eager refuses and the compiler accepts is one group (``validation``): each operator whose decomposition forgot
    a check shows it anew. Layouts that nobody is hurt by are one for each stage (``layout-decomposition``).
    """
    if severity == Severity.ACCEPTS_INVALID:
        return VALIDATION
    return f"{LAYOUT}-{parse_stage(signature)}" if severity == Severity.LAYOUT else None
