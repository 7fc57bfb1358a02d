"""Bounds for a reproducer: wide enough for rounding, narrow enough for the error that was seen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from fuzzcompile.contract import OutputJson
from fuzzcompile.reduction.scripts.probe import Observable

# Relative part of torch.testing.assert_close's default tolerance.
_DEFAULT_RTOL = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-7, torch.complex128: 1e-7}
_SINGLE_RTOL = 1.3e-6
# How far two float64 runs of one program may be apart, in units of the largest value.
FLOAT64_SHARE = 1e-9
# Perturbed runs are small samples of what rounding can do.
_NOISE_FACTOR = 3
# The error that was seen must exceed the bound by this much, or the bound says too little.
_MARGIN = 1.5

Seen = Iterable[tuple[Observable, OutputJson]]


@dataclass(frozen=True)
class Allowed:
    """The compiled error may be ``factor`` times the eager error plus ``share`` of the largest value."""

    factor: float
    share: float

    def at(self, eager: float, largest: float) -> float:
        """The bound in absolute terms."""
        return self.factor * eager + self.share * largest


def allowed(seen: Seen) -> Allowed:
    """The widest usual bound that every error in the evidence exceeds; the widest of all without evidence."""
    seen = list(seen)
    share = max((_share(observable, evidence) for observable, evidence in seen), default=_SINGLE_RTOL)
    choices = (Allowed(10, share), Allowed(3, share), Allowed(3, 0.0), Allowed(1.5, 0.0))
    return next((choice for choice in choices if all(_exceeds(*pair, choice) for pair in seen)), choices[-1])


def share_apart(seen: Seen) -> float:
    """Share of the largest value by which compiled and eager may differ where float64 cannot arbitrate."""
    seen = list(seen)
    share = max((_share(observable, evidence) for observable, evidence in seen), default=_SINGLE_RTOL)
    wide = Allowed(0, 10 * share)
    return wide.share if all(_exceeds(*pair, wide) for pair in seen) else share


def _share(observable: Observable, evidence: OutputJson) -> float:
    rtol = _DEFAULT_RTOL.get(observable.dtype, _SINGLE_RTOL) if observable.dtype else _SINGLE_RTOL
    noise = evidence.get("noise_floor")
    if not noise or not observable.largest:
        return rtol
    return max(rtol, _NOISE_FACTOR * float(noise) / observable.largest)


def _exceeds(observable: Observable, evidence: OutputJson, bound: Allowed) -> bool:
    compiled = evidence.get("max_abs_error_compiled")
    if compiled is None or not math.isfinite(compiled) or evidence.get("finding") == "missing":
        return True  # not measured, or not finite
    return bool(compiled > _MARGIN * bound.at(evidence.get("max_abs_error_eager") or 0.0, observable.largest))
