"""Errors that are small everywhere: seen in norms over all elements, where no single one stands out.

A kernel that is wrong by 2e-2 throughout stays below what rounding may do to one bfloat16 element, but rounding
averages out over many elements and a change of meaning does not. Two figures of the error e = value − reference,
over the elements where the reference r is not zero, without the compiled run's largest twentieth (so that a flip of
``floor`` or a few outliers, which the test by elements judges, do not decide):

    bias = ⟨e, r⟩ / ⟨r, r⟩            the share of the error that is a common factor
    rms  = √(mean e²) / √(mean r²)    the relative error in the 2-norm

The compiled run drifts if one of them exceeds what eager and the perturbed runs show (which bear the same correlated
rounding: that of a common divisor, say).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.oracle import metrics

# Fewer elements than this average nothing out.
_MIN_ELEMENTS = 64
_KEPT = 0.95
# How many times what rounding usually does is worth another look. In 216 runs of transformer blocks (float32, bfloat16
# and float16, eval and training, 1008 values) the largest was 1.26 for the RMS and 0.45 for the bias.
_SUSPICIOUS_RMS = 1.5
_SUSPICIOUS_BIAS = 2.0
# Rounding of the result alone: uniform within one unit in the last place it has an RMS of 1/√12 of it; and one scalar
# that all elements are multiplied with brings about a common factor of a quarter of eps on the average.
_ROUNDED_RMS = 12**-0.5
_ROUNDED_BIAS = 0.25
# Each operator of a perturbed run moves by -1, 0 or 1 units in the last place, eager's by up to a half: the perturbed
# runs' RMS was 2 to 4 times eager's in float32 and 4 to 7 times in shorter types. A quarter of it stands for rounding
# where eager was lucky, a half where there is no second opinion by float64.
_PERTURBED = 0.25
_PERTURBED_SURELY = 0.5


@dataclass(frozen=True)
class Drift:
    """A compiled run that is farther off in a norm than rounding explains.

    ``tolerable`` says that it is within PyTorch's default relative tolerance or so little beyond the usual that it is
    for float64 to decide.
    """

    figure: str
    eager: float
    compiled: float
    tolerable: bool

    def __str__(self) -> str:
        return f"{self.figure} {self.compiled:.1e} of the output's size, {self.eager:.1e} in eager"


def drift(
    eager: torch.Tensor, compiled: torch.Tensor, reference: torch.Tensor, noisy: Sequence[torch.Tensor]
) -> Drift | None:
    """The norm in which the compiled run is too far from the reference; None if there is none."""
    exact, *runs = (_vector(value) for value in (reference, eager, compiled, *noisy))
    usable = exact != 0
    for values in (exact, *runs):
        usable &= torch.isfinite(values)
    if int(usable.sum()) < _MIN_ELEMENTS:
        return None
    errors = [(values - exact)[usable] for values in runs]
    exact = exact[usable]
    size = errors[1].abs()
    bulk = size <= size.kthvalue(max(1, int(_KEPT * size.numel()))).values
    exact, errors = exact[bulk], [error[bulk] for error in errors]
    eps = torch.finfo(eager.dtype).eps
    rtol, _ = metrics.DEFAULT_TOLERANCE.get(eager.dtype, (0.0, 0.0))
    return _bias(exact, errors, eps, rtol) or _rms(exact, errors, eps, rtol)


def _bias(exact: torch.Tensor, errors: Sequence[torch.Tensor], eps: float, rtol: float) -> Drift | None:
    weight = float(exact.square().sum())
    own, compiled, *noisy = (abs(float((error * exact).sum())) / weight for error in errors)
    usual = max(own, *noisy, 0.0) + _ROUNDED_BIAS * eps
    if compiled <= _SUSPICIOUS_BIAS * usual:
        return None
    return Drift("a common factor is off by", own, compiled, compiled <= max(rtol, metrics.ROUNDING_FACTOR * usual))


def _rms(exact: torch.Tensor, errors: Sequence[torch.Tensor], eps: float, rtol: float) -> Drift | None:
    size = metrics.rms(exact)
    own, compiled, *noisy = (metrics.rms(error) / size for error in errors)
    perturbed = max(noisy, default=0.0)
    rounded = max(own, _ROUNDED_RMS * eps)
    if compiled <= _SUSPICIOUS_RMS * max(rounded, _PERTURBED * perturbed):
        return None
    limit = metrics.ROUNDING_FACTOR * max(rounded, _PERTURBED_SURELY * perturbed)
    return Drift("RMS error is", own, compiled, compiled <= max(rtol, limit))


def _vector(value: torch.Tensor) -> torch.Tensor:
    wide = metrics.widened(value)
    return torch.view_as_real(wide).flatten() if wide.is_complex() else wide.flatten()
