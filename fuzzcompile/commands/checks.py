"""One check of a machine."""

from __future__ import annotations

from dataclasses import dataclass

from fuzzcompile.contract import AttentionKernelsJson


@dataclass(frozen=True)
class Check:
    """One check and its result.

    ``needed`` tells whether a campaign needs it to pass, ``lines`` is a table below it, and ``attention`` that table
    as data.
    """

    name: str
    fine: bool
    found: str
    advice: str = ""
    needed: bool = True
    lines: tuple[str, ...] = ()
    attention: tuple[AttentionKernelsJson, ...] = ()
