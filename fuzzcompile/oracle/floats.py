"""Compare floating-point (and complex) values against the reference."""

from __future__ import annotations

import torch

from fuzzcompile.execution.observation import Value
from fuzzcompile.oracle import metrics, norms
from fuzzcompile.oracle.evidence import Comparison, Finding

# If eager and compiled differ by this share of their size, and both are within what rounding allows, eager itself has
# no correct digits left: not even the second bit is certain.
_NO_DIGITS = 0.25


def compare_floats(
    eager: Value,
    expected: torch.Tensor,
    actual: torch.Tensor,
    exact: torch.Tensor,
    samples: list[torch.Tensor],
    smallest_scale: float,
    factor: float = metrics.ROUNDING_FACTOR,
) -> Comparison:
    """Compare eager's values ``expected`` with the compiled values ``actual``.

    NaN and infinities come first, then each element, then the norms. All tensors have one shape.

    Args:
        eager: the observable that ``expected`` belongs to.
        expected: eager's values, in the dtype that both runs are held to.
        actual: the compiled values.
        exact: the float64 reference.
        samples: the values of the perturbed eager runs.
        smallest_scale: absolute size below which a value counts as exactly zero.
        factor: see :data:`metrics.ROUNDING_FACTOR`.
    """
    # In this order, because each of these needs the memory of several of its results.
    within = metrics.within_scaled_tolerance(actual, expected, smallest_scale)
    allowed = metrics.allowance(exact, expected, samples, expected.dtype, factor)
    error_eager, error_compiled = metrics.distance(expected, exact), metrics.distance(actual, exact)
    scale = max(metrics.rms(exact), smallest_scale)
    broken = _unexplained_nonfinite(expected, actual, exact, samples, scale)
    # An exact zero is what remains where numbers of that scale cancel; their rounding remains as well.
    bound = allowed.bound.clamp_(min=metrics.ALWAYS_ALLOWED * torch.finfo(expected.dtype).eps * smallest_scale)
    excess = metrics.excess(error_compiled, bound)
    apart = metrics.distance(expected, actual)
    finding: Finding = "close"
    detail, by_norm = "", False
    if bool(broken.any()):
        finding, excess = "nonfinite", broken.to(excess.dtype)
    elif bool((far := excess > 0).any()):
        # Other elements may be beyond the tolerance and within rounding: one alone is not wrong, nor is the other.
        finding, within = "far", within or metrics.within_scaled_tolerance(actual, expected, smallest_scale, far)
    elif _is_wild(apart, error_eager, scale, (expected, actual, exact)):
        finding = "wild"
    elif smallest_scale == 0.0:  # a result that is exactly zero is rounding throughout
        drift = norms.drift(expected, actual, exact, samples, factor)
        if drift is not None:
            finding, by_norm, within, detail = "far", True, drift.tolerable, str(drift)
            excess = error_compiled
    worst = excess if finding in ("far", "nonfinite") else apart
    where, at = metrics.place(worst, eager=expected, compiled=actual, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        max_error_eager=metrics.largest(error_eager),
        max_error_compiled=metrics.largest(error_compiled),
        rms_error_eager=metrics.rms(error_eager),
        rms_error_compiled=metrics.rms(error_compiled),
        max_ulps_eager=metrics.ulps(error_eager, exact, expected.dtype),
        max_ulps_compiled=metrics.ulps(error_compiled, exact, expected.dtype),
        noise_floor=allowed.noise_floor,
        scale=scale,
        within_default_tolerance=metrics.within_default_tolerance(actual, expected),
        within_scaled_tolerance=within,
        by_norm=by_norm,
        cosine=metrics.cosine(actual, exact),
        where=where,
        at=at,
        detail=detail,
    )


def _is_wild(
    apart: torch.Tensor, error_eager: torch.Tensor, scale: float, runs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> bool:
    """Return whether no correct digits are left, although both runs are within what rounding allows.

    Either the runs differ by a share of the reference's size (the element's own or the output's RMS, whichever is
    larger), or eager is that far from the reference and the runs differ by a share of their own size.
    """
    least = torch.finfo(runs[0].dtype).tiny
    for _, (far, far_eager, *values) in metrics.pieces(apart, error_eager, *runs):
        expected, actual, exact = (value.abs().nan_to_num(0.0, 0.0, 0.0) for value in values)
        limit = _NO_DIGITS * exact.clamp(min=max(scale, least))
        lost = (far_eager > limit) & (far > _NO_DIGITS * torch.maximum(expected, actual).clamp(min=least))
        if bool(((far > limit) | lost | torch.isinf(far)).any()):
            return True
    return False


def _unexplained_nonfinite(
    expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor], scale: float
) -> torch.Tensor:
    """Mark elements at which compiled is finite, NaN or infinite unlike every other run and the reference.

    Elements of which eager or a perturbed run has no correct digit are excluded, even if the reference is finite: at
    a discontinuity (0 to a power that is rounded to zero) any value may result, an infinity too.
    """
    broken = torch.zeros(expected.shape, dtype=torch.bool)
    for place, (compiled, reference, *runs) in metrics.pieces(actual, exact, expected, *samples):
        kinds = _kind(compiled)
        if bool(kinds.any()) or not bool(torch.isfinite(runs[0]).all()):
            held = reference.to(expected.dtype)  # the float64 result as the program's own dtype holds it
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
