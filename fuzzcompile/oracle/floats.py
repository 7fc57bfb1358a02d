"""Comparing floating-point (and complex) values against the reference."""

from __future__ import annotations

import torch

from fuzzcompile.execution.observation import Value
from fuzzcompile.oracle import metrics, norms
from fuzzcompile.oracle.evidence import Comparison, Finding

# Eager and compiled apart by this share of the output's size, both within what rounding allows: no correct
# digits are left in eager itself.
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
    error_eager, error_compiled = metrics.distance(one, exact), metrics.distance(other, exact)
    allowed = metrics.allowance(exact, one, samples, one.dtype)
    scale = max(metrics.rms(metrics.widened(exact)), smallest_scale)
    broken = _unexplained_nonfinite(one, other, exact, samples)
    finite = torch.isfinite(error_compiled)
    # What is exactly zero is left over where numbers of that scale cancel, with their rounding.
    bound = allowed.bound.clamp(min=_CANCELLED * torch.finfo(one.dtype).eps * smallest_scale)
    excess = torch.where(finite, error_compiled - bound, torch.zeros_like(error_compiled))
    apart = metrics.distance(one, other)
    within = metrics.within_scaled_tolerance(other, one, smallest_scale)
    finding: Finding = "close"
    detail, by_norm = "", False
    if bool(broken.any()):
        finding, excess = "nonfinite", broken.to(excess.dtype)
    elif bool((excess > 0).any()):
        finding = "far"
    elif _is_wild(apart, scale, one.dtype):
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


def _is_wild(apart: torch.Tensor, scale: float, dtype: torch.dtype) -> bool:
    """Whether the runs share no digits, although both are within what rounding allows."""
    finite = torch.where(torch.isfinite(apart), apart, torch.zeros_like(apart))
    limit = _NO_DIGITS * max(scale, torch.finfo(dtype).tiny)
    return metrics.largest(finite) > limit or bool(torch.isinf(apart).any())


def _unexplained_nonfinite(
    one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor]
) -> torch.Tensor:
    """Where compiled is NaN or infinite in a way that neither eager, a perturbed run nor the reference is."""
    kinds = _kind(other)
    explained = (kinds == _kind(one)) | (kinds == _kind(exact))
    for sample in samples:
        explained |= kinds == _kind(sample)
    return ~explained


def _kind(tensor: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +∞, 3 −∞."""
    wide = metrics.widened(tensor)
    if wide.is_complex():
        return torch.isnan(wide).long() + 2 * torch.isinf(wide).long()
    return torch.isnan(wide).long() + 2 * torch.isposinf(wide).long() + 3 * torch.isneginf(wide).long()
