"""Near misses: small operators that change a case so that a rewrite should no longer apply, or must apply with care.

Each docstring says what the operator changes, which rewrite that concerns, and why the rewrite must not apply or must
act differently. Operators are drawn independently, in the order of `NEAR_MISSES`; of a
family at most one is drawn. Whether a case has a near miss is read from its spec.
"""

from __future__ import annotations

from fuzzcompile.fuzz.near_misses import near_miss_operators
from fuzzcompile.fuzz.near_misses.near_miss_registry import NEAR_MISSES, NearMiss, apply_near_misses

__all__ = ["NEAR_MISSES", "NearMiss", "apply_near_misses", "near_miss_operators"]
