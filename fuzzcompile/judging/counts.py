"""What a judged case covered. Needs no torch, so that a process which only collects answers can read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CoverageCount:
    """How often a rewrite rule matched, by what became of the match; or a decomposition, lowering or kernel was used.

    ``outcome`` is ``fired``, ``refused`` or ``vetoed``, or ``fallback`` for an operator that is called, not lowered.
    """

    stage: str
    pass_name: str | None
    rewrite: str
    outcome: str
    count: int
