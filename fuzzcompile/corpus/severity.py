"""Which symptom of a bug to show: one cause may give wrong numbers in one case and a wrong stride in another."""

from __future__ import annotations

from fuzzcompile.contract import ReportJson, told

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
    """Rank of a report's verdict: higher is worse, 0 for none and for verdicts that are no bug.

    Of two reports with one verdict, that from a device that ran ranks above that from one that was only told.
    """
    verdict = (report or {}).get("verdict")
    if report is None or verdict not in _WORST_FIRST:
        return 0
    return 2 * (len(_WORST_FIRST) - _WORST_FIRST.index(verdict)) - (told(report) is not None)
