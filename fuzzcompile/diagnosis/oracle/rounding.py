"""Rules that call a difference rounding: by element, for integers that rounding can flip, and in norms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch

from fuzzcompile.model import thresholds
from fuzzcompile.model.verdicts import Comparison, Finding
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Value
from fuzzcompile.run.sharded_tensors import read_part

# Compare integers, booleans and indices exactly, except where rounding alone can flip them.


def compare_integers(
    eager: Value, expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor]
) -> Comparison:
    """Compare eager's values ``expected`` with the compiled values ``actual``.

    An index or a comparison that rounding alone can flip says nothing about the compiler. The samples are few: if
    they flip some elements, ``ROUNDING_FACTOR`` times as many, by that many times as much, may flip in another run.
    """
    apart = metrics.exact_distance(expected, actual)
    flips = metrics.exact_distance(expected, exact)
    max_abs_error_eager, flipped = metrics.largest(flips), int((flips > 0).sum())
    for sample in samples:
        moved = metrics.exact_distance(expected, sample)
        flipped = max(flipped, int((moved > 0).sum()))
        torch.maximum(flips, moved, out=flips)
    unexplained = (apart > 0) & (flips == 0)
    usual = thresholds.ROUNDING_FACTOR * flipped
    if int(unexplained.sum()) <= usual:
        unexplained &= apart > thresholds.ROUNDING_FACTOR * metrics.largest(flips)
    finding: Finding = "integer" if bool(unexplained.any()) else "wild" if bool((apart > 0).any()) else "same"
    error = torch.where(unexplained, apart, torch.zeros_like(apart)) if finding == "integer" else apart
    where, at = metrics.find_worst(error, eager=expected, compiled=actual, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        max_abs_error_eager=max_abs_error_eager,
        max_abs_error_compiled=metrics.largest(metrics.exact_distance(actual, exact)),
        scale=metrics.rms(exact),
        within_default_tolerance=not bool((apart > 0).any()),
        within_scaled_tolerance=not bool((apart > 0).any()),
        where=where,
        at=at,
    )


@dataclass(frozen=True)
class Drift:
    """A compiled run that is farther from the reference in a norm than rounding explains.

    ``tolerable`` says that the drift is within PyTorch's default relative tolerance, or so little beyond the usual
    that only float64 can decide.
    """

    figure: str
    eager: float
    compiled: float
    tolerable: bool

    def __str__(self) -> str:
        return f"{self.figure} {self.compiled:.1e} of the output's size, {self.eager:.1e} in eager"


def find_drift(
    eager: torch.Tensor,
    compiled: torch.Tensor,
    reference: torch.Tensor,
    noisy: Sequence[torch.Tensor],
    factor: float = thresholds.ROUNDING_FACTOR,
) -> Drift | None:
    """The norm in which the compiled run is too far from the reference; None if it is in neither.

    What is suspicious grows and shrinks with ``factor`` (``ROUNDING_FACTOR``).

    A kernel that is wrong by 2e-2 throughout stays below what rounding may do to one bfloat16 element, but rounding
    averages out over many elements and a change of meaning does not. Two figures of the error e = value − reference are
    compared, over the elements where the reference r is not zero, without the largest twentieth of the compiled run's
    errors (a flip of ``floor`` or a few outliers must not decide; the test by elements judges those):

        bias = ⟨e, r⟩ / ⟨r, r⟩            the share of the error that is a common factor
        rms  = √(mean e²) / √(mean r²)    the relative error in the 2-norm

    The compiled run drifts if either exceeds what eager and the perturbed runs show, which have the same correlated
    rounding (that of a common divisor, for instance). Of subnormal numbers neither tells anything.
    """
    runs = (reference, eager, compiled, *noisy)
    bulk = _find_bulk_limit(runs)
    if bulk is None:
        return None
    weight, count, products, squares = 0.0, 0, *torch.zeros(2, len(runs) - 1, dtype=torch.float64)
    for exact, errors in _iter_usable(runs):
        kept = errors[1].abs() <= bulk
        held, off = exact[kept], torch.stack([error[kept] for error in errors])
        weight, count = weight + float(held.square().sum()), count + held.numel()
        products += (off * held).sum(1)
        squares += off.square().sum(1)
    if weight == 0.0 or not all(map(math.isfinite, (weight, *products, *squares))):
        return None  # the squares of the numbers underflow or overflow
    # Shorter floats are computed with as float32, of whose subnormal results processors may make zeros.
    if math.sqrt(weight / count) < min(torch.finfo(dtype).smallest_normal for dtype in (eager.dtype, torch.float32)):
        return None
    eps, least = torch.finfo(eager.dtype).eps, factor / thresholds.ROUNDING_FACTOR
    rtol, _ = metrics.DEFAULT_TOLERANCE.get(eager.dtype, (0.0, 0.0))
    own, measured, *noise = (products.abs() / weight).tolist()
    usual = max(own, *noise, 0.0) + thresholds.ROUNDED_BIAS * eps
    if measured > thresholds.SUSPICIOUS_BIAS * least * usual:
        return Drift("a common factor is off by", own, measured, measured <= max(rtol, factor * usual))
    own, measured, *noise = (squares / weight).sqrt().tolist()
    perturbed, rounded = max(noise, default=0.0), max(own, thresholds.ROUNDED_RMS * eps)
    if measured <= thresholds.SUSPICIOUS_RMS * least * max(rounded, thresholds.PERTURBED_SHARE * perturbed):
        return None
    limit = max(rtol, factor * max(rounded, thresholds.PERTURBED_SURELY * perturbed))
    return Drift("RMS error is", own, measured, measured <= limit)


def _iter_usable(runs: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """The first of ``runs`` and the differences of the rest from it, where it is not zero and all are finite."""
    for _, values in metrics.iter_pieces(*runs):
        exact, *measured = (torch.view_as_real(each).flatten() if each.is_complex() else each for each in values)
        usable = exact != 0
        for value in (exact, *measured):
            usable &= torch.isfinite(value)
        if bool(usable.all()):
            yield exact, [value - exact for value in measured]
        else:
            yield exact[usable], [(value - exact)[usable] for value in measured]


def _find_bulk_limit(runs: Sequence[torch.Tensor]) -> float | None:
    """The largest error of the compiled run outside its largest twentieth; None for too few elements."""
    compiled = runs[2]
    sizes = torch.empty(2 * compiled.numel() if compiled.is_complex() else compiled.numel(), dtype=torch.float64)
    count = 0
    for _, errors in _iter_usable(runs):
        piece = errors[1].abs()
        sizes[count : count + piece.numel()] = piece
        count += piece.numel()
    if count < thresholds.LEAST_ELEMENTS:
        return None
    # Not kthvalue, which takes another copy and three times as long.
    last, ordered = max(1, int(thresholds.KEPT_SHARE * count)) - 1, sizes[:count].numpy()
    ordered.partition(last)
    return float(ordered[last])


# Compare floating-point (and complex) values against the reference.


def compare_floats(
    eager: Value,
    expected: torch.Tensor,
    actual: torch.Tensor,
    exact: torch.Tensor,
    samples: list[torch.Tensor],
    smallest_scale: float,
    factor: float = thresholds.ROUNDING_FACTOR,
) -> Comparison:
    """Compare the values ``expected`` of ``eager``, in the dtype that both runs are held to, with the compiled ones.

    NaN and infinities come first, then each element, then the norms. All tensors have one shape: ``exact`` is the
    float64 reference, and ``samples`` are of perturbed eager runs. Below ``smallest_scale`` a value counts as exactly
    zero.
    """
    # In this order, because each of these needs the memory of several of its results.
    within = metrics.within_scaled_tolerance(actual, expected, smallest_scale)
    bound, noise_floor = metrics.compute_allowance(exact, expected, samples, expected.dtype, factor)
    error_eager, error_compiled = metrics.distance(expected, exact), metrics.distance(actual, exact)
    scale = max(metrics.rms(exact), smallest_scale)
    broken = _find_unexplained_nonfinite(expected, actual, exact, samples, scale)
    # An exact zero is what remains where numbers of that scale cancel; their rounding remains as well.
    bound.clamp_(min=thresholds.ALWAYS_ALLOWED * torch.finfo(expected.dtype).eps * smallest_scale)
    excess = torch.sub(error_compiled, bound, out=bound).masked_fill_(~torch.isfinite(error_compiled), 0.0)
    apart = metrics.distance(expected, actual)
    drift: Drift | None = None
    finding: Finding = "close"
    if bool(broken.any()):
        finding, excess = "nonfinite", broken.to(excess.dtype)
    elif bool((excess > 0).any()):
        finding = "far"
        # Other elements may be beyond the tolerance and within rounding: one alone is not wrong, nor is the other.
        within = within or metrics.within_scaled_tolerance(actual, expected, smallest_scale, excess > 0)
    elif _is_wild(apart, error_eager, scale, (expected, actual, exact)):
        finding = "wild"
    elif smallest_scale == 0.0:  # a result that is exactly zero is rounding throughout
        drift = find_drift(expected, actual, exact, samples, factor)
        if drift is not None:
            finding, within, excess = "far", drift.tolerable, error_compiled
    worst = excess if finding in ("far", "nonfinite") else apart
    where, at = metrics.find_worst(worst, eager=expected, compiled=actual, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        **_measure_errors("eager", error_eager, exact, expected.dtype),
        **_measure_errors("compiled", error_compiled, exact, expected.dtype),
        noise_floor=noise_floor,
        scale=scale,
        within_default_tolerance=metrics.within_default_tolerance(actual, expected),
        within_scaled_tolerance=within,
        by_norm=drift is not None,
        cosine=metrics.cosine(actual, exact),
        where=where,
        at=at,
        detail="" if drift is None else str(drift),
    )


def _measure_errors(run: str, error: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> dict[str, Any]:
    return {
        f"max_abs_error_{run}": metrics.largest(error),
        f"rms_error_{run}": metrics.rms(error),
        f"max_ulps_{run}": metrics.ulps(error, exact, dtype),
    }


def _is_wild(
    apart: torch.Tensor, error_eager: torch.Tensor, scale: float, runs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> bool:
    """Return whether no correct digits are left, although both runs are within what rounding allows.

    Either the runs differ by a share of the reference's size (the element's own or the output's RMS, whichever is
    larger), or eager is that far from the reference and the runs differ by a share of their own size.
    """
    least = torch.finfo(runs[0].dtype).tiny
    for _, (far, far_eager, *values) in metrics.iter_pieces(apart, error_eager, *runs):
        expected, actual, exact = (value.abs().nan_to_num(0.0, 0.0, 0.0) for value in values)
        limit = thresholds.NO_DIGITS * exact.clamp(min=max(scale, least))
        lost = (far_eager > limit) & (far > thresholds.NO_DIGITS * torch.maximum(expected, actual).clamp(min=least))
        if bool(((far > limit) | lost | torch.isinf(far)).any()):
            return True
    return False


def _find_unexplained_nonfinite(
    expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor], scale: float
) -> torch.Tensor:
    """Mark elements at which compiled is finite, NaN or infinite unlike every other run and the reference.

    Elements of which eager or a perturbed run has no correct digit are excluded, even if the reference is finite: at
    a discontinuity (0 to a power that is rounded to zero) any value may result, an infinity too.
    """
    broken = torch.zeros(expected.shape, dtype=torch.bool)
    for place, (compiled, reference, *runs) in metrics.iter_pieces(actual, exact, expected, *samples):
        kinds = _classify_nonfinite(compiled)
        if bool(kinds.any()) or not bool(torch.isfinite(runs[0]).all()):
            held = reference.to(expected.dtype)  # the float64 result as the program's own dtype holds it
            explained = [kinds == _classify_nonfinite(run) for run in (reference, held, *runs)]
            limit = thresholds.NO_DIGITS * reference.abs().clamp(min=scale)
            explained += [(run - reference).abs() > limit for run in runs]
            broken.view(-1)[place] = ~torch.stack(explained).any(0)
    return broken


def _classify_nonfinite(wide: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +∞, 3 −∞."""
    if wide.is_complex():
        return torch.isnan(wide).long() + 2 * torch.isinf(wide).long()
    return torch.isnan(wide).long() + 2 * torch.isposinf(wide).long() + 3 * torch.isneginf(wide).long()


# The one measure of change: how far apart two computations of a value are, and when that is more than rounding.


def are_comparable(before: object, after: object) -> bool:
    """Return whether both are tensors of one shape, or parts of tensors that this process has."""
    before, after = read_part(before), read_part(after)
    return isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) and before.shape == after.shape


def measure_size(value: object) -> float:
    """RMS of a tensor's finite values; 0 for anything else."""
    value = read_part(value)
    return metrics.rms(value) if isinstance(value, torch.Tensor) else 0.0


def relative_change(before: object, after: object, *, unit: float = 0.0) -> float:
    """The largest elementwise change, in units of the larger RMS size, or of ``unit`` where that is larger still.

    Dtypes may differ. Two NaN, or the same infinity twice, are no change; a value that is finite on one side only is
    an infinite one, as are another shape and a tensor in the place of something else. Two values that are no tensors
    compare as unchanged. Where both sides are zero in size the change is absolute.
    """
    before, after = read_part(before), read_part(after)  # other processes do not look at the rest
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return float("inf") if isinstance(before, torch.Tensor) != isinstance(after, torch.Tensor) else 0.0
    if _is_same_memory(before, after):
        return 0.0
    if before.shape != after.shape:
        return float("inf")
    change = metrics.largest_distance(before, after)
    if not change:
        return 0.0
    scale = max(metrics.rms(before), metrics.rms(after), unit)
    return change / scale if scale else change


def _is_same_memory(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before is after:
        return True
    if type(before) is not torch.Tensor or type(after) is not torch.Tensor or before.dtype != after.dtype:
        return False
    if before.layout != torch.strided or after.layout != torch.strided or not before.data_ptr():
        return False
    where = before.data_ptr(), before.shape, before.stride(), before.device
    return where == (after.data_ptr(), after.shape, after.stride(), after.device)


def largest_change(before: Sequence[object], after: Sequence[object], units: Sequence[float] = ()) -> float:
    """The largest :func:`relative_change` of the pairs that are :func:`are_comparable`; ``units`` by position."""
    pairs = zip(before, after, chain(units, repeat(0.0)), strict=False)
    return max((relative_change(a, b, unit=unit) for a, b, unit in pairs if are_comparable(a, b)), default=0.0)


def changes_meaning(step: float, noise: float = 0.0) -> bool:
    """Return whether a float64 change alters the meaning; ``noise`` is the effect of one float64 ulp per operator."""
    return step > max(thresholds.SEMANTIC_STEP, thresholds.AMPLIFIED * noise)
