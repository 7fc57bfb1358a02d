"""Errors that are small everywhere: norms over all elements show them, though no single element stands out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.oracle import metrics

# Fewer elements than this average nothing out.
_MIN_ELEMENTS = 64
_KEPT = 0.95
# Multiples of the usual rounding that are suspicious. In 216 runs of transformer blocks (float32, bfloat16 and
# float16, eval and training, 1008 values) the largest was 1.26 for the RMS and 0.45 for the bias.
_SUSPICIOUS_RMS = 1.5
_SUSPICIOUS_BIAS = 2.0
# Rounding of the result alone: uniform within one unit in the last place, its RMS is 1/√12 of that unit; a scalar that
# multiplies all elements is itself rounded, which on average makes a common factor of a quarter of eps.
_ROUNDED_RMS = 12**-0.5
_ROUNDED_BIAS = 0.25
# Each operator of a perturbed run moves by -1, 0 or 1 units in the last place, eager's by up to a half: the perturbed
# runs' RMS was 2 to 4 times eager's in float32 and 4 to 7 times in shorter types. A quarter of it stands for usual
# rounding where eager happened to be exact, a half where no float64 step confirms the suspicion.
_PERTURBED = 0.25
_PERTURBED_SURELY = 0.5


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


def drift(
    eager: torch.Tensor,
    compiled: torch.Tensor,
    reference: torch.Tensor,
    noisy: Sequence[torch.Tensor],
    factor: float = metrics.ROUNDING_FACTOR,
) -> Drift | None:
    """The norm in which the compiled run is too far from the reference; None if it is in neither.

    What is suspicious grows and shrinks with ``factor`` (:data:`metrics.ROUNDING_FACTOR`).

    A kernel that is wrong by 2e-2 throughout stays below what rounding may do to one bfloat16 element, but rounding
    averages out over many elements and a change of meaning does not. Two figures of the error e = value − reference are
    compared, over the elements where the reference r is not zero, without the largest twentieth of the compiled run's
    errors (a flip of ``floor`` or a few outliers must not decide; the test by elements judges those):

        bias = ⟨e, r⟩ / ⟨r, r⟩            the share of the error that is a common factor
        rms  = √(mean e²) / √(mean r²)    the relative error in the 2-norm

    The compiled run drifts if either exceeds what eager and the perturbed runs show, which have the same correlated
    rounding (that of a common divisor, for instance).
    """
    runs = (reference, eager, compiled, *noisy)
    bulk = _bulk(runs)
    if bulk is None:
        return None
    sums = _Sums(len(runs) - 1)
    for exact, errors in _usable(runs):
        kept = errors[1].abs() <= bulk
        sums.add(exact[kept], [error[kept] for error in errors])
    if sums.weight == 0.0 or not sums.are_finite:  # the squares of the numbers underflow or overflow
        return None
    eps = torch.finfo(eager.dtype).eps
    rtol, _ = metrics.DEFAULT_TOLERANCE.get(eager.dtype, (0.0, 0.0))
    return _bias(sums, eps, rtol, factor) or _rms(sums, eps, rtol, factor)


class _Sums:
    """Σr², and Σe·r and Σe² of each run, over the elements added so far."""

    def __init__(self, runs: int) -> None:
        self.weight = 0.0
        self.products = [0.0] * runs
        self.squares = [0.0] * runs

    @property
    def are_finite(self) -> bool:
        """Return whether none of the sums overflowed."""
        return all(map(math.isfinite, (self.weight, *self.products, *self.squares)))

    def add(self, exact: torch.Tensor, errors: Sequence[torch.Tensor]) -> None:
        """Add the reference's values and every run's errors at some elements."""
        self.weight += float(exact.square().sum())
        for run, error in enumerate(errors):
            self.products[run] += float((error * exact).sum())
            self.squares[run] += float(error.square().sum())


def _usable(runs: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """The first of ``runs`` and the differences of the rest from it, where it is not zero and all are finite."""
    for _, values in metrics.pieces(*runs):
        exact, *measured = (_vector(value) for value in values)
        usable = exact != 0
        for value in (exact, *measured):
            usable &= torch.isfinite(value)
        if bool(usable.all()):
            yield exact, [value - exact for value in measured]
        else:
            yield exact[usable], [(value - exact)[usable] for value in measured]


def _bulk(runs: Sequence[torch.Tensor]) -> float | None:
    """The largest error of the compiled run outside its largest twentieth; None for too few elements."""
    compiled = runs[2]
    sizes = torch.empty(2 * compiled.numel() if compiled.is_complex() else compiled.numel(), dtype=torch.float64)
    count = 0
    for _, errors in _usable(runs):
        piece = errors[1].abs()
        sizes[count : count + piece.numel()] = piece
        count += piece.numel()
    if count < _MIN_ELEMENTS:
        return None
    # Not kthvalue, which takes another copy and three times as long.
    last, ordered = max(1, int(_KEPT * count)) - 1, sizes[:count].numpy()
    ordered.partition(last)
    return float(ordered[last])


def _bias(sums: _Sums, eps: float, rtol: float, factor: float) -> Drift | None:
    own, compiled, *noisy = (abs(product) / sums.weight for product in sums.products)
    usual = max(own, *noisy, 0.0) + _ROUNDED_BIAS * eps
    if compiled <= _SUSPICIOUS_BIAS * factor / metrics.ROUNDING_FACTOR * usual:
        return None
    return Drift("a common factor is off by", own, compiled, compiled <= max(rtol, factor * usual))


def _rms(sums: _Sums, eps: float, rtol: float, factor: float) -> Drift | None:
    own, compiled, *noisy = (math.sqrt(square / sums.weight) for square in sums.squares)
    perturbed = max(noisy, default=0.0)
    rounded = max(own, _ROUNDED_RMS * eps)
    if compiled <= _SUSPICIOUS_RMS * factor / metrics.ROUNDING_FACTOR * max(rounded, _PERTURBED * perturbed):
        return None
    limit = factor * max(rounded, _PERTURBED_SURELY * perturbed)
    return Drift("RMS error is", own, compiled, compiled <= max(rtol, limit))


def _vector(wide: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(wide).flatten() if wide.is_complex() else wide
