"""Near misses: small operators that change a case so that a rewrite should no longer apply, or must apply with care."""

from __future__ import annotations

from fuzzcompile.fuzz.near_misses.near_miss_registry import NEAR_MISSES, NearMiss, apply_near_misses

__all__ = ["NEAR_MISSES", "NearMiss", "apply_near_misses"]
