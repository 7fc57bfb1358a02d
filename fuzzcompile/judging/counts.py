"""Coverage of a judged case. Needs no torch, so that a process which only collects answers can read it."""

from __future__ import annotations

from dataclasses import dataclass

NO_REFERENCE = "no float64 reference"
"""How the note begins that a case was compared with eager alone."""


@dataclass(frozen=True)
class CoverageCount:
    """Number of matches of a rewrite rule with one outcome, or of uses of a decomposition, lowering or kernel.

    ``outcome`` is ``fired``, ``refused`` or ``vetoed``, or ``fallback`` for an operator that is called, not lowered.
    ``step`` is the largest step in float64 of a rule that fired; None where it was not replayed.
    """

    stage: str
    pass_name: str | None
    rewrite: str
    outcome: str
    count: int
    step: float | None = None
