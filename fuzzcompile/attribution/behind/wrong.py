"""What may be found to be wrong behind the graph passes, and when a value counts as wrong."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.kernels.lowered import Kernel, Lowered, Overwritten
from fuzzcompile.execution.observation import Value
from fuzzcompile.execution.tensors import significant_strides
from fuzzcompile.oracle import metrics
from fuzzcompile.oracle.comparison import Comparison, compare

_KERNEL_FACTOR = 20.0
_WRONG = ("far", "nonfinite", "integer", "shape", "dtype")


@dataclass(frozen=True)
class WrongOperator:
    """An operator whose IR is wrong though all that it reads is right. ``exact``: in float64, so beyond rounding.

    ``step`` is the largest error in units of the value's RMS size; ``kernel`` a library's, where the call is wrong.
    """

    lowered: Lowered
    node: str
    exact: bool
    step: float
    comparison: Comparison | None = None
    kernel: Kernel | None = None


@dataclass(frozen=True)
class WrongKernel:
    """The first kernel that writes something else than its IR says.

    ``scheduled``: the form that the scheduler gave its loops is wrong already; ``overwritten``: its arguments were
    right when they were written, and no more when it read them. ``nodes`` are the operators whose values the wrong
    buffer holds or was computed with.
    """

    lowered: Lowered
    kernel: Kernel
    buffer: str
    comparison: Comparison
    nodes: tuple[str, ...]
    scheduled: bool = False
    overwritten: Overwritten | None = None


@dataclass(frozen=True)
class WrongOutput:
    """An output of a compiled graph, or an input that it writes to, that is wrong though the kernels are right."""

    lowered: Lowered
    name: str
    comparison: Comparison


def how_wrong(
    name: str, right: torch.Tensor, value: torch.Tensor, exact: torch.Tensor, samples: Sequence[torch.Tensor]
) -> Comparison | None:
    """How ``value`` is farther from ``exact`` than rounding explains; None if it is not."""
    as_value = functools.partial(Value, name, kind="output")
    comparison = compare(
        as_value(value=right, stride=significant_strides(right)),
        as_value(value=value, stride=significant_strides(right)),
        as_value(value=exact),
        [as_value(value=sample) for sample in samples],
    )
    return comparison if comparison.finding in _WRONG else None


def beyond_rounding(comparison: Comparison) -> bool:
    """Whether what is within default tolerances is wrong all the same.

    Rounding was carried through the kernels before this one, and through other ones in what it is compared with.
    """
    usual = max(comparison.max_error_eager, comparison.noise_floor)
    return comparison.finding != "far" or comparison.max_error_compiled > _KERNEL_FACTOR * usual


def relative_change(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest change in units of the larger RMS size; infinite where only one has NaN or infinities."""
    if one.dtype.is_floating_point and bool((torch.isfinite(one) != torch.isfinite(other)).any()):
        return float("inf")
    change = metrics.farthest(one, other)
    unit = max(metrics.rms(one), metrics.rms(other))
    return change / unit if unit else change
