"""Distances between tensors, and how much of them rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from fuzzcompile.model.thresholds import ALWAYS_ALLOWED, LEAST_SLICE, ROUNDING_FACTOR
from fuzzcompile.run.sharded_tensors import read_part
from fuzzcompile.run.tensors import densify, is_inexact

# torch.testing.assert_close: (rtol, atol) by dtype.
DEFAULT_TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
# Elements that are measured at a time: few enough that torch does not split them among threads, which on a busy
# machine would wait for each other at every operator.
_PIECE = 2**14


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """The values as float64 (complex128) on the CPU, for measuring."""
    return _widen_values(densify(tensor).detach().cpu())


def iter_pieces(*tensors: torch.Tensor) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """The values of tensors of one shape side by side, widened, a short run of elements at a time.

    One piece at a time in float64 takes next to no memory and stays in the processor's cache. An empty tensor has none.
    """
    flat = [_flatten(tensor) for tensor in tensors]
    for start in range(0, flat[0].numel(), _PIECE):
        place = slice(start, min(start + _PIECE, flat[0].numel()))
        yield place, [_widen_values(values[place]) for values in flat]


def distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """|first − second| per element; 0 where both are the same infinity or both NaN, ∞ where one is finite."""
    first, second = densify(first), densify(second)
    if first.shape != second.shape:
        first, second = torch.broadcast_tensors(first, second)  # type: ignore[no-untyped-call]
    apart = torch.empty(first.shape, dtype=torch.float64)
    flat = apart.view(-1)
    for place, pair in iter_pieces(first, second):
        flat[place] = _measure_distance(*pair)
    return apart


def exact_distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """:func:`distance`, but never 0 between integers that differ: float64 cannot represent all beyond 2**53."""
    apart = distance(first, second)
    if first.dtype != second.dtype or is_inexact(first):
        return apart
    differ = (first != second).to(apart.device)
    return apart.masked_fill_(differ & (apart < 1.0), 1.0)


def have_same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have one shape, one dtype and the same values; NaNs are alike.

    Of a ``DTensor`` only the part that is here is compared: the other processes may do something else.
    """
    first, second = read_part(first), read_part(second)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    # torch.equal supports neither float8 nor complex32.
    if first.dtype is not torch.complex32 and (first.element_size() > 1 or not first.is_floating_point()):
        if first.device != second.device:
            first, second = first.cpu(), second.cpu()
        if torch.equal(densify(first), densify(second)):
            return True
        if not is_inexact(first):
            return False
    return all(not bool(_measure_distance(*pair).any()) for _, pair in iter_pieces(first, second))


def largest_distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest :func:`distance`."""
    if first.shape != second.shape:
        return largest(distance(first, second))
    return max((float(_measure_distance(*pair).max()) for _, pair in iter_pieces(first, second)), default=0.0)


def ulps(error: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> float:
    """The largest error in units in the last place of ``dtype`` at the size of the reference, where both are finite.

    ulp(r) = eps · 2^⌊log₂|r|⌋, with |r| between the smallest normal number and the largest (Goldberg 1991, with Kahan's
    treatment of the subnormal range).
    """
    info = torch.finfo(dtype)
    most = 0.0
    for _, (apart, size) in iter_pieces(error, reference):
        size = size.abs()
        counted = torch.isfinite(size) & torch.isfinite(apart)
        _, exponent = torch.frexp(size.clamp_(info.smallest_normal, info.max))
        unit = info.eps * torch.exp2((exponent - 1).to(torch.float64))
        most = max(most, largest(torch.where(counted, apart / unit, 0.0)))
    return most


def find_worst(
    error: torch.Tensor, **runs: torch.Tensor
) -> tuple[tuple[int, ...] | None, dict[str, float | int | None]]:
    """Index of the largest error and the values there, by run."""
    if error.numel() == 0:
        return None, {}
    flat = int(error.flatten().argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), error.shape))
    items = ((name, densify(tensor)[where].item()) for name, tensor in runs.items())
    return where, {name: abs(item) if isinstance(item, complex) else item for name, item in items}


def largest(values: torch.Tensor) -> float:
    """The maximum, 0 for an empty tensor."""
    return float(values.max()) if values.numel() else 0.0


def rms(values: torch.Tensor) -> float:
    """Root mean square of the finite values, 0 if there are none."""
    count, total = 0, 0.0
    for _, (wide,) in iter_pieces(values):
        finite = torch.isfinite(wide)
        counted = int(finite.sum())
        if counted:
            kept = wide if counted == wide.numel() else wide[finite]
            total += float(kept.abs().square_().sum())
            count += counted
    return math.sqrt(total / count) if count else 0.0


def compute_allowance(
    reference: torch.Tensor,
    eager: torch.Tensor,
    noisy: list[torch.Tensor],
    dtype: torch.dtype,
    factor: float = ROUNDING_FACTOR,
) -> tuple[torch.Tensor, float]:
    """The distance from ``reference`` that rounding explains, by element (float64, CPU), and the largest perturbation.

    All tensors have one shape.

    The eager run's own distance and that of the perturbed runs, each widened to the largest value of the slices through
    the element (so that rows of small numbers are held to their own scale), times ``factor``, plus
    :data:`ALWAYS_ALLOWED` units in the last place of ``dtype``. Where eager or a perturbed run overflows and the
    reference does not, any distance is allowed.

    Spreading relative errors as well would be sharper, but was tried and gave false alarms on bfloat16 sines and roots,
    whose conditioning varies by element.
    """
    worst = torch.empty(reference.shape, dtype=torch.float64)
    overflowed = torch.zeros(reference.shape, dtype=torch.bool)
    floor = 0.0
    for place, (exact, own, *perturbed) in iter_pieces(reference, eager, *noisy):
        most, beyond = worst.view(-1)[place].zero_(), overflowed.view(-1)[place]
        for number, error in enumerate(
            (_measure_distance(own, exact), *(_measure_distance(run, own) for run in perturbed))
        ):
            infinite = torch.isinf(error)
            error.masked_fill_(infinite, 0.0)
            beyond |= infinite
            torch.maximum(most, error, out=most)
            if number:
                floor = max(floor, float(error.max()))
    bound = _spread(worst)
    del worst
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
    for place, (exact,) in iter_pieces(reference):
        ulp = eps * exact.abs().nan_to_num_(0.0, 0.0, 0.0)
        piece = bound.view(-1)[place]
        piece.mul_(factor).add_(ALWAYS_ALLOWED * ulp).add_(tiny)
        piece.masked_fill_(overflowed.view(-1)[place], math.inf)
    return bound, floor


def _spread(worst: torch.Tensor) -> torch.Tensor:
    """Each element raised to the largest in the smallest slice (one index fixed) that contains it; a new tensor."""
    spread = torch.full_like(worst, largest(worst))
    if worst.numel() == 0:
        return spread
    for dim, size in enumerate(worst.shape):
        if size < 2 or worst.numel() // size < LEAST_SLICE:
            continue
        slices = [d for d in range(worst.dim()) if d != dim]
        torch.minimum(spread, worst.amax(slices, keepdim=True), out=spread)
    return spread


def within_default_tolerance(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """``torch.testing.assert_close`` at its defaults (NaN equal to NaN, dtype and stride not compared)."""
    return _is_within(actual, expected, torch.ones((), dtype=torch.float64).expand(expected.numel()))


def within_scaled_tolerance(
    actual: torch.Tensor, expected: torch.Tensor, smallest_scale: float, among: torch.Tensor | None = None
) -> bool:
    """:func:`within_default_tolerance` with the absolute part in units of the size of the numbers around an element.

    Unscaled, any two outputs of size 1e-5 are "close". No scale below ``smallest_scale`` is used. ``among`` limits it
    to some elements.
    """
    size = torch.empty(expected.shape, dtype=torch.float64)
    for place, (eager,) in iter_pieces(expected):
        size.view(-1)[place] = eager.abs().nan_to_num_(0.0, 0.0, 0.0)
    units = _spread(size).clamp_(min=smallest_scale).view(-1)
    return _is_within(actual, expected, units, None if among is None else ~among.reshape(-1))


def _is_within(
    actual: torch.Tensor, expected: torch.Tensor, units: torch.Tensor, ignored: torch.Tensor | None = None
) -> bool:
    rtol, atol = DEFAULT_TOLERANCE.get(expected.dtype, (0.0, 0.0))
    for place, (compiled, eager) in iter_pieces(actual, expected):
        bound = atol * units[place] + rtol * eager.abs().nan_to_num_(0.0, 0.0, 0.0)
        close = _measure_distance(compiled, eager) <= bound
        if not bool((close if ignored is None else close | ignored[place]).all()):
            return False
    return True


def cosine(first: torch.Tensor, second: torch.Tensor) -> float | None:
    """Cosine similarity of the flattened tensors; None if one of them is zero, empty or not finite."""
    first_square, second_square, product = 0.0, 0.0, 0.0
    for _, (left, right) in iter_pieces(first, second):
        if left.is_complex() or right.is_complex():
            left, right = left.abs(), right.abs()
        first_square += float(left.dot(left))
        second_square += float(right.dot(right))
        product += float(left.dot(right))
    norm = math.sqrt(first_square) * math.sqrt(second_square)
    if not math.isfinite(norm) or norm == 0.0:
        return None
    return product / norm


def _flatten(tensor: torch.Tensor) -> torch.Tensor:
    return densify(tensor).detach().cpu().reshape(-1)


def _widen_values(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _measure_distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """:func:`distance` of widened tensors, all at once."""
    apart = (first - second).abs()
    same = first == second
    if not bool(same.all()):
        same |= torch.isnan(first) & torch.isnan(second)
        apart.masked_fill_(torch.isnan(apart), math.inf)
    return apart.masked_fill_(same, 0.0)
