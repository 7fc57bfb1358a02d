"""Comparing integers, booleans and indices: exact, but for what rounding alone can flip."""

from __future__ import annotations

import torch

from fuzzcompile.execution.observation import Value
from fuzzcompile.oracle import metrics
from fuzzcompile.oracle.evidence import Comparison, Finding


def compare_integers(
    eager: Value, one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor]
) -> Comparison:
    """Compare the eager values ``one`` with the compiled ``other``.

    An index or a comparison that rounding alone can flip says nothing about the compiler. The samples are few:
    where they flip some elements, as many others again, by as much, may flip in another run.
    """
    apart = metrics.exact_distance(one, other)
    flips = metrics.exact_distance(one, exact)
    max_error_eager, flipped = metrics.largest(flips), int((flips > 0).sum())
    for sample in samples:
        moved = metrics.exact_distance(one, sample)
        flipped = max(flipped, int((moved > 0).sum()))
        torch.maximum(flips, moved, out=flips)
    unexplained = (apart > 0) & (flips == 0)
    usual = metrics.ROUNDING_FACTOR * flipped
    if int(unexplained.sum()) <= usual:
        unexplained &= apart > metrics.ROUNDING_FACTOR * metrics.largest(flips)
    finding: Finding = "integer" if bool(unexplained.any()) else "wild" if bool((apart > 0).any()) else "same"
    error = torch.where(unexplained, apart, torch.zeros_like(apart)) if finding == "integer" else apart
    where, at = metrics.place(error, eager=one, compiled=other, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        max_error_eager=max_error_eager,
        max_error_compiled=metrics.largest(metrics.exact_distance(other, exact)),
        scale=metrics.rms(exact),
        within_default_tolerance=not bool((apart > 0).any()),
        within_scaled_tolerance=not bool((apart > 0).any()),
        where=where,
        at=at,
    )
