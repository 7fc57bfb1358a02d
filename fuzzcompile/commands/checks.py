"""One check of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check and its result; ``needed`` tells whether a campaign needs it to pass."""

    name: str
    fine: bool
    found: str
    advice: str = ""
    needed: bool = True
