"""Which symptom of a bug to show: one cause may give wrong numbers in one case and a wrong stride in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzcompile.contract import ReportJson

# Worst first: silently wrong values, then values that are visibly broken, then errors, then the rest.
_WORST_FIRST = (
    "miscompile",
    "wrong_gradient",
    "nonfinite",
    "aliasing",
    "crash",
    "compile_error",
    "runtime_error",
    "accepts_invalid",
    "timeout",
    "precision_loss",
    "metadata",
    "nondeterministic",
)


def severity(report: ReportJson | None) -> int:
    """Rank of a report's verdict: higher is worse, 0 for none and for verdicts that are no bug."""
    verdict = (report or {}).get("verdict")
    return len(_WORST_FIRST) - _WORST_FIRST.index(verdict) if verdict in _WORST_FIRST else 0
