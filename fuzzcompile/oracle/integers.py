"""Compare integers, booleans and indices exactly, except where rounding alone can flip them."""

from __future__ import annotations

import torch

from fuzzcompile.execution.observation import Value
from fuzzcompile.oracle import metrics
from fuzzcompile.oracle.evidence import Comparison, Finding


def compare_integers(
    eager: Value, expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor]
) -> Comparison:
    """Compare eager's values ``expected`` with the compiled values ``actual``.

    An index or a comparison that rounding alone can flip says nothing about the compiler. The samples are few: if
    they flip some elements, :data:`metrics.ROUNDING_FACTOR` times as many, by that many times as much, may flip in
    another run.
    """
    apart = metrics.exact_distance(expected, actual)
    flips = metrics.exact_distance(expected, exact)
    max_error_eager, flipped = metrics.largest(flips), int((flips > 0).sum())
    for sample in samples:
        moved = metrics.exact_distance(expected, sample)
        flipped = max(flipped, int((moved > 0).sum()))
        torch.maximum(flips, moved, out=flips)
    unexplained = (apart > 0) & (flips == 0)
    usual = metrics.ROUNDING_FACTOR * flipped
    if int(unexplained.sum()) <= usual:
        unexplained &= apart > metrics.ROUNDING_FACTOR * metrics.largest(flips)
    finding: Finding = "integer" if bool(unexplained.any()) else "wild" if bool((apart > 0).any()) else "same"
    error = torch.where(unexplained, apart, torch.zeros_like(apart)) if finding == "integer" else apart
    where, at = metrics.place(error, eager=expected, compiled=actual, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        max_error_eager=max_error_eager,
        max_error_compiled=metrics.largest(metrics.exact_distance(actual, exact)),
        scale=metrics.rms(exact),
        within_default_tolerance=not bool((apart > 0).any()),
        within_scaled_tolerance=not bool((apart > 0).any()),
        where=where,
        at=at,
    )
