"""The one measure of change: how far apart two computations of a value are, and when that is more than rounding.

Changes are relative: the largest elementwise distance in units of the value's RMS size, the larger of the two sides',
so that a change neither grows without bound where one side vanishes nor depends on which side came first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import torch

from fuzzcompile.run import metrics

# A float64 change beyond this is one of meaning. Rewrites and decompositions may fold constants in the program's own
# float32, which moves a float64 result by up to 4 ulp of float32; replayed clean graphs move by 4e-16 (measured).
SEMANTIC_STEP = 4 * torch.finfo(torch.float32).eps
# A change must be this many times what one ulp per operator does to the same value: a program that amplifies rounding
# amplifies float64's as well. Clean generated modules stay within 1e-14, 45 ulp of float64 (210 cases, measured).
AMPLIFIED = 100.0
# A native result may be this many times farther away than rounding was seen to carry it: one run, or a few, are a
# small sample of what rounding can do.
NATIVE = metrics.ROUNDING_FACTOR


def are_comparable(before: object, after: object) -> bool:
    """Return whether both are tensors of one shape."""
    return isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) and before.shape == after.shape


def measure_size(value: object) -> float:
    """RMS of a tensor's finite values; 0 for anything else."""
    return metrics.rms(value) if isinstance(value, torch.Tensor) else 0.0


def relative_change(before: object, after: object, *, unit: float = 0.0) -> float:
    """The largest elementwise change, in units of the larger RMS size, or of ``unit`` where that is larger still.

    Dtypes may differ. Two NaN, or the same infinity twice, are no change; a value that is finite on one side only is
    an infinite one, as are another shape and a tensor in the place of something else. Two values that are no tensors
    compare as unchanged. Where both sides are zero in size the change is absolute.
    """
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
    """Return whether both are the same elements: replays share the inputs that no graph wrote to."""
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
    return step > max(SEMANTIC_STEP, AMPLIFIED * noise)
