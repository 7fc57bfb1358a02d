"""Which face of a bug to show: one cause may give wrong numbers here and an odd stride there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def severity(report: Mapping[str, Any] | None) -> int:
    """Rank of a report's verdict: higher is worse, 0 for none and for verdicts that are no bug."""
    verdict = (report or {}).get("verdict")
    return len(_WORST_FIRST) - _WORST_FIRST.index(verdict) if verdict in _WORST_FIRST else 0
