"""The names in evidence about memory that only one of the two runs shares."""

from __future__ import annotations

import re

from fuzzcompile.contract import OutputJson

_SHARES = re.compile(r"shares memory with (?P<names>.+?)(?: and \d+ more)?$")
_PARTS = re.compile(r"eager: (?P<eager>.*); compiled: (?P<compiled>.*)")


def gained(evidence: OutputJson) -> tuple[str, ...]:
    """Names of tensors that share an output's memory when compiled, and not in eager."""
    return _own(evidence, "compiled")


def lost(evidence: OutputJson) -> tuple[str, ...]:
    """Names of tensors that share an output's memory in eager, and not when compiled."""
    return _own(evidence, "eager")


def _own(evidence: OutputJson, run: str) -> tuple[str, ...]:
    """Names out of the sentence that ``oracle.aliasing`` makes; a part that ends in "only" has none of its own."""
    parts = _PARTS.fullmatch(str(evidence.get("detail") or "")) if evidence.get("finding") == "alias" else None
    shares = _SHARES.search(parts[run]) if parts else None
    if shares is None or shares["names"].endswith(" only"):
        return ()
    return tuple(shares["names"].split(", "))
