"""Comparing floating-point (and complex) values against the reference."""

from __future__ import annotations

import torch

from fuzzcompile.execution.observation import Value
from fuzzcompile.oracle import metrics, norms
from fuzzcompile.oracle.evidence import Comparison, Finding

# Eager and compiled apart by this share of their size, both within what rounding allows: no correct digits are left
# in eager itself.
_NO_DIGITS = 0.25
# Units in the last place of the terms that rounding may leave of a sum that is exactly zero.
_CANCELLED = 4.0


def compare_floats(
    eager: Value,
    one: torch.Tensor,
    other: torch.Tensor,
    exact: torch.Tensor,
    samples: list[torch.Tensor],
    smallest_scale: float,
) -> Comparison:
    """Compare the eager values ``one`` with the compiled ``other``: NaN and infinities, each element, the norms."""
    # In this order, because each of these takes the memory of several of its results.
    within = metrics.within_scaled_tolerance(other, one, smallest_scale)
    allowed = metrics.allowance(exact, one, samples, one.dtype)
    error_eager, error_compiled = metrics.distance(one, exact), metrics.distance(other, exact)
    scale = max(metrics.rms(exact), smallest_scale)
    broken = _unexplained_nonfinite(one, other, exact, samples, scale)
    # What is exactly zero is left over where numbers of that scale cancel, with their rounding.
    bound = allowed.bound.clamp_(min=_CANCELLED * torch.finfo(one.dtype).eps * smallest_scale)
    excess = metrics.excess(error_compiled, bound)
    apart = metrics.distance(one, other)
    finding: Finding = "close"
    detail, by_norm = "", False
    if bool(broken.any()):
        finding, excess = "nonfinite", broken.to(excess.dtype)
    elif bool((excess > 0).any()):
        finding = "far"
    elif _is_wild(apart, error_eager, scale, (one, other, exact)):
        finding = "wild"
    elif smallest_scale == 0.0:  # where the result is exactly zero, all of it is rounding
        drift = norms.drift(one, other, exact, samples)
        if drift is not None:
            finding, by_norm, within, detail = "far", True, drift.tolerable, str(drift)
            excess = error_compiled
    worst = excess if finding in ("far", "nonfinite") else apart
    where, at = metrics.place(worst, eager=one, compiled=other, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        max_error_eager=metrics.largest(error_eager),
        max_error_compiled=metrics.largest(error_compiled),
        rms_error_eager=metrics.rms(error_eager),
        rms_error_compiled=metrics.rms(error_compiled),
        max_ulps_eager=metrics.ulps(error_eager, exact, one.dtype),
        max_ulps_compiled=metrics.ulps(error_compiled, exact, one.dtype),
        noise_floor=allowed.noise_floor,
        scale=scale,
        within_default_tolerance=metrics.within_default_tolerance(other, one),
        within_scaled_tolerance=within,
        by_norm=by_norm,
        cosine=metrics.cosine(other, exact),
        where=where,
        at=at,
        detail=detail,
    )


def _is_wild(
    apart: torch.Tensor, error_eager: torch.Tensor, scale: float, runs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> bool:
    """Whether no digits are left, although both runs are within what rounding allows.

    The runs are apart by a share of the reference's size (the element's own or the output's RMS, whichever is
    larger); or eager is that far from the reference and the runs are apart by a share of their own size.
    """
    least = torch.finfo(runs[0].dtype).tiny
    for _, (far, far_eager, *values) in metrics.pieces(apart, error_eager, *runs):
        one, other, exact = (value.abs().nan_to_num(0.0, 0.0, 0.0) for value in values)
        limit = _NO_DIGITS * exact.clamp(min=max(scale, least))
        lost = (far_eager > limit) & (far > _NO_DIGITS * torch.maximum(one, other).clamp(min=least))
        if bool(((far > limit) | lost | torch.isinf(far)).any()):
            return True
    return False


def _unexplained_nonfinite(
    one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor], scale: float
) -> torch.Tensor:
    """Where compiled is NaN or infinite (or not) in a way that neither eager, a perturbed run nor the reference is.

    Not where eager or a perturbed run has no digit right itself, though the reference is finite: on either side of
    a discontinuity (0 to the power of what is rounded to zero) anything may stand, and an infinity is no news.
    """
    broken = torch.zeros(one.shape, dtype=torch.bool)
    for place, (compiled, reference, *runs) in metrics.pieces(other, exact, one, *samples):
        kinds = _kind(compiled)
        if bool(kinds.any()) or not bool(torch.isfinite(runs[0]).all()):
            held = reference.to(one.dtype)  # as the program's own dtype holds what float64 gives
            explained = [kinds == _kind(run) for run in (reference, held, *runs)]
            limit = _NO_DIGITS * reference.abs().clamp(min=scale)
            explained += [(run - reference).abs() > limit for run in runs]
            broken.view(-1)[place] = ~torch.stack(explained).any(0)
    return broken


def _kind(wide: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +∞, 3 −∞."""
    if wide.is_complex():
        return torch.isnan(wide).long() + 2 * torch.isinf(wide).long()
    return torch.isnan(wide).long() + 2 * torch.isposinf(wide).long() + 3 * torch.isneginf(wide).long()
