"""Distances between tensors, and what rounding may account for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fuzzcompile.execution.tensors import dense

# torch.testing.assert_close: (rtol, atol) by dtype.
DEFAULT_TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
# A run whose rounding differs may be this many times farther from the reference than eager and the
# perturbed runs were: both are small samples of what rounding can do.
ROUNDING_FACTOR = 6.0
# Slices of fewer elements than this say too little about the size of rounding in them.
_MIN_SLICE = 16


@dataclass(frozen=True)
class Allowance:
    """Per-element bound on the distance from the reference that rounding explains (float64, CPU)."""

    bound: torch.Tensor
    noise_floor: float


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The values as float64 (complex128) on the CPU, for measuring."""
    return dense(tensor).detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)


def distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """|first − second| per element; 0 where both are the same infinity or both NaN, ∞ where one is finite."""
    one, other = widened(first), widened(second)
    apart = (one - other).abs()
    same = (one == other) | (torch.isnan(one) & torch.isnan(other))
    apart = torch.where(same, torch.zeros_like(apart), apart)
    return torch.where(torch.isnan(apart), torch.full_like(apart, math.inf), apart)


def exact_distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """:func:`distance`, but never 0 between integers that differ: beyond 2**53 float64 has not all of them."""
    apart = distance(one, other)
    if one.dtype != other.dtype or one.is_floating_point() or one.is_complex():
        return apart
    differ = (one != other).to(apart.device)
    return torch.where(differ, apart.clamp(min=1.0), apart)


def ulps(error: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> float:
    """The largest error in units in the last place of ``dtype`` at the size of the reference.

    ulp(r) = eps · 2^⌊log₂|r|⌋, with |r| no smaller than the smallest normal number (below it, and at zero, the numbers
    of the type have one constant distance) and no larger than the largest (Goldberg 1991, with Kahan's treatment of
    the subnormal range). Elements where the error or the reference is not finite do not count.
    """
    info = torch.finfo(dtype)
    size = widened(reference).abs()
    counted = torch.isfinite(size) & torch.isfinite(error)
    _, exponent = torch.frexp(size[counted].clamp(info.smallest_normal, info.max))
    unit = info.eps * torch.exp2((exponent - 1).to(torch.float64))
    return largest(error[counted] / unit)


def place(error: torch.Tensor, **runs: torch.Tensor) -> tuple[tuple[int, ...] | None, dict[str, float | int | None]]:
    """Index of the largest error and the values there, by run."""
    if error.numel() == 0:
        return None, {}
    flat = int(error.flatten().argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), error.shape))
    return where, {name: _scalar(tensor.flatten()[flat]) for name, tensor in runs.items()}


def _scalar(value: torch.Tensor) -> float | int | None:
    item = value.item()
    return abs(item) if isinstance(item, complex) else item


def largest(values: torch.Tensor) -> float:
    """The maximum, 0 for an empty tensor."""
    return float(values.max()) if values.numel() else 0.0


def rms(values: torch.Tensor) -> float:
    """Root mean square of the finite values, 0 if there are none."""
    finite = values[torch.isfinite(values)].abs()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def allowance(reference: torch.Tensor, eager: torch.Tensor, noisy: list[torch.Tensor], dtype: torch.dtype) -> Allowance:
    """What distance from ``reference`` rounding explains, element by element.

    The eager run's own distance and that of the perturbed runs, each widened to the largest value of the
    slices through the element (so that rows of small numbers are held to their own scale), times
    :data:`ROUNDING_FACTOR`; at least a few units in the last place of the result. Anything goes where eager or
    a perturbed run overflows and the reference does not.

    Spreading relative errors as well would be sharper (an error of 0.1 at one bfloat16 of 0.5 among numbers of 3 is
    within the bound), but was tried and accused bfloat16 sines and roots whose conditioning varies by element.
    """
    errors = [distance(eager, reference), *(distance(other, eager) for other in noisy)]
    finite = [torch.where(torch.isfinite(e), e, torch.zeros_like(e)) for e in errors]
    worst = torch.stack(finite).amax(0)
    floor = max((largest(e) for e in finite[1:]), default=0.0)
    ulp = torch.finfo(dtype).eps * widened(reference).abs().nan_to_num(0.0, 0.0, 0.0)
    tiny = torch.finfo(dtype).smallest_normal
    bound = ROUNDING_FACTOR * _spread(worst) + 4 * ulp + tiny
    overflowed = ~torch.stack([torch.isfinite(e) for e in errors]).all(0)
    return Allowance(torch.where(overflowed, torch.full_like(bound, math.inf), bound), floor)


def _spread(worst: torch.Tensor) -> torch.Tensor:
    """Each element raised to the largest in the smallest slice (one index fixed) that holds it."""
    if worst.numel() == 0:
        return worst
    spread = torch.full_like(worst, largest(worst))
    for dim, size in enumerate(worst.shape):
        if size < 2 or worst.numel() // size < _MIN_SLICE:
            continue
        others = [d for d in range(worst.dim()) if d != dim]
        spread = torch.minimum(spread, worst.amax(others, keepdim=True).expand_as(worst))
    return spread


def within_default_tolerance(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """``torch.testing.assert_close`` at its defaults (NaN equal to NaN, dtype and stride not compared)."""
    rtol, atol = DEFAULT_TOLERANCE.get(expected.dtype, (0.0, 0.0))
    bound = atol + rtol * widened(expected).abs().nan_to_num(0.0, 0.0, 0.0)
    return bool((distance(actual, expected) <= bound).all())


def within_scaled_tolerance(actual: torch.Tensor, expected: torch.Tensor, smallest_scale: float) -> bool:
    """Default tolerance with the absolute part in units of the size of the numbers around each element.

    Unscaled, any two outputs of size 1e-5 are "close". No scale is taken to be below ``smallest_scale``.
    """
    rtol, atol = DEFAULT_TOLERANCE.get(expected.dtype, (0.0, 0.0))
    size = widened(expected).abs().nan_to_num(0.0, 0.0, 0.0)
    bound = atol * _spread(size).clamp(min=smallest_scale) + rtol * size
    return bool((distance(actual, expected) <= bound).all())


def cosine(first: torch.Tensor, second: torch.Tensor) -> float | None:
    """Cosine similarity of the flattened tensors; None where one is zero, empty or not finite."""
    one, other = widened(first).flatten().abs(), widened(second).flatten().abs()
    if not first.is_complex():
        one, other = widened(first).flatten(), widened(second).flatten()
    norm = float(one.norm() * other.norm())
    if not math.isfinite(norm) or norm == 0.0:
        return None
    return float((one * other).sum() / norm)
