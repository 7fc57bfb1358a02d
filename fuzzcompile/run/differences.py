"""Whether a derivative along a direction is the limit of differences of the function, measured on either side."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from fuzzcompile.model.thresholds import DERIVATIVE_TOLERANCE, DIFFERENCE_STEP, LEAST_MISS, MEETS, MISS_FACTOR
from fuzzcompile.run.metrics import rms
from fuzzcompile.run.tensors import has_own_elements

DIRECTION_SEEDS = (0, 1, 2)
"""A derivative is wrong if it misses differences along two of three directions: kinks that cancel along one do not
along another, and what is wrong about it may cancel along one as well."""


@dataclass(frozen=True)
class Slope:
    """A derivative along a direction: ``value``, and the sum of the absolute values of its terms."""

    value: float
    size: float

    @classmethod
    def add(cls, slopes: Iterable[Slope]) -> Slope:
        """That along all of several directions at once, of different tensors."""
        parts = list(slopes)
        return cls(sum(part.value for part in parts), sum(part.size for part in parts))


def weigh_misses(misses: Iterable[float | None]) -> float | None:
    """The miss along at least two directions; None if differences have no limit along one.

    ``misses`` are measured one by one: the third is asked for only where the first two disagree.
    """
    found = list[float]()
    for miss in misses:
        if miss is None:
            return None
        found.append(miss)
        if len(found) == 2 and bool(found[0]) == bool(found[1]):
            break
    return sorted(found)[-2]


def draw_direction(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A direction of a tensor in float64, as long as the tensor is large: the step is `DIFFERENCE_STEP` of its size."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return torch.randn(tensor.shape, generator=generator, dtype=dtype).to(tensor.device) * (rms(tensor) or 1.0)


def move_leaf(leaf: torch.Tensor, change: torch.Tensor) -> None:
    """Move a tensor in place, laid out as it is; where one element in memory stands for many, each has its own then."""
    with torch.no_grad():
        if has_own_elements(leaf):
            leaf.add_(change.to(leaf))
        else:
            leaf.data = leaf.data + change.to(leaf)


def measure_slope(gradient: torch.Tensor | None, direction: torch.Tensor) -> Slope:
    """⟨g, d⟩, of complex tensors its real part: torch's gradient is ∂L/∂Re + i ∂L/∂Im. None is a gradient of 0."""
    if gradient is None:
        return Slope(0.0, 0.0)
    terms = (gradient.to(direction).conj() * direction).real
    return Slope(float(terms.sum()), float(terms.abs().sum()))


def measure_miss(slope: Slope, loss: Callable[[float], float], *, terms: float | None = None) -> float | None:
    """By which share of its size a derivative misses the differences of ``loss``, a function of the step.

    0 if it meets them. None where they have no limit, and the gradient may be any of several: at a step, at a kink, or
    beside a loss too large for differences. Those on either side part by the curvature, which halves with the step, and
    by a kink, which does not. Rounding is of the size of the loss's ``terms``: of erf(9) no difference shows.
    """
    start = loss(0.0)
    steps = [sign * length for length in (DIFFERENCE_STEP, DIFFERENCE_STEP / 2) for sign in (1, -1)]
    ahead, behind, ahead_near, behind_near = ((loss(step) - start) / step for step in steps)
    kink = 2 * (ahead_near - behind_near) - (ahead - behind)
    limit = (ahead_near + behind_near) / 2
    spread = max(abs(kink), abs((ahead + behind) / 2 - limit))
    if not math.isfinite(spread + slope.size):
        return None
    scale, miss = max(slope.size, abs(limit)), abs(limit - slope.value)
    rounding = sys.float_info.epsilon * (abs(start) if terms is None else terms) / steps[2]
    if spread + rounding > DERIVATIVE_TOLERANCE * scale:
        return None
    if miss <= max(LEAST_MISS * scale, MISS_FACTOR * spread):
        return 0.0
    # Beside a gradient that explodes, of factors of a singular matrix, differences of a jump look like a small spread.
    return miss / scale if spread <= MEETS * abs(limit) else None
