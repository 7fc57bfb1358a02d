"""Compare one observable of the compiled run with its counterparts in eager and in the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fuzzcompile.diagnosis.oracle.rounding import compare_floats, compare_integers
from fuzzcompile.model.evidence import ONLY_EAGER, AliasDifference, ValuePair
from fuzzcompile.model.thresholds import ROUNDING_FACTOR
from fuzzcompile.model.verdicts import Comparison, Finding
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Observation, Value

__all__ = ["Comparison", "DtypeFactor", "compare"]


# Comparison of memory sharing: each value against the values that it shares memory with, in both runs.


def describe_alias_difference(eager: Value, compiled: Value) -> str | None:
    """Say which other values a write into this one changes in one run only; None if the runs agree.

    Measured on torch 2.13 (inductor, CPU, some 130 forms of views, copies and no-ops, with and without gradients):
    compiled keeps eager's aliases in all but two forms. ``F.dropout`` with nothing to drop returns its input in eager
    and a copy when compiled (pytorch#115249, pytorch#195422); ``x * ones`` and ``x + zeros`` are new tensors in eager
    and the operand itself when compiled (pytorch#197893). A write into the result shows either, and both are open
    issues, so neither is a mere note.
    """
    if set(eager.aliases) == set(compiled.aliases):
        return None
    return str(AliasDifference.of(eager.name, eager.aliases, compiled.aliases))


DtypeFactor = Callable[[torch.dtype], float]

_NUMBERS = (int, float, complex)


def compare(
    eager: Value,
    compiled: Value | None,
    reference: Value | None,
    noisy: Sequence[Value],
    *,
    smallest_scale: float = 0.0,
    factor_of: DtypeFactor | None = None,
) -> Comparison:
    """Compare one observable of the eager and the compiled run with the float64 reference and perturbed eager runs.

    Where there is no reference, eager stands in for it. Below ``smallest_scale`` a value counts as exactly zero (a
    gradient that vanishes by symmetry consists of rounding only). ``factor_of`` stands for ``ROUNDING_FACTOR``, by the
    dtype of the values.
    """
    if compiled is None:
        return Comparison(eager.name, eager.kind, "missing", detail=ONLY_EAGER)
    if eager.is_rounded_number and type(eager.value) is type(compiled.value):
        eager, compiled = eager.as_tensor(), compiled.as_tensor()
        reference, noisy = reference and reference.as_tensor(), [sample.as_tensor() for sample in noisy]
    if not eager.is_tensor or not compiled.is_tensor:
        return _with_aliases(_compare_objects(eager, compiled), eager, compiled)
    expected, actual = eager.value, compiled.value
    if expected.shape != actual.shape:
        return _differ_in("shape", eager, tuple(expected.shape), tuple(actual.shape))
    comparison = _compare_tensors(eager, compiled, reference, noisy, smallest_scale, factor_of)
    if _values_agree(comparison):
        if expected.dtype != actual.dtype:
            return _differ_in("dtype", eager, expected.dtype, actual.dtype)
        if eager.form != compiled.form:
            return _differ_in("dtype", eager, eager.form or "Tensor", compiled.form or "Tensor")
        comparison = _with_aliases(comparison, eager, compiled)
        if comparison.finding != "alias" and eager.kind == "output" and eager.stride != compiled.stride:
            raises = _is_contiguous(expected.shape, eager.stride) and not _is_flat(actual.shape, compiled.stride)
            return replace(_differ_in("stride", eager, eager.stride, compiled.stride), view_raises=raises)
    return comparison


def _is_contiguous(shape: Sequence[int], significant: Sequence[int]) -> bool:
    expected, following = list[int](), 1
    for size in reversed([size for size in shape if size != 1]):
        expected.insert(0, following)
        following *= size
    return list(significant) == expected


def _is_flat(shape: Sequence[int], significant: Sequence[int]) -> bool:
    """Return whether ``view(-1)`` runs: each step along a dimension is a whole row of the next one."""
    sizes = [size for size in shape if size != 1]
    inner = zip(significant, sizes[1:], significant[1:], strict=False)
    return all(stride == size * step for stride, size, step in inner)


def _values_agree(comparison: Comparison) -> bool:
    suspicion = comparison.finding == "far" and comparison.within_scaled_tolerance
    return suspicion or comparison.finding in ("same", "close", "wild")


def _with_aliases(comparison: Comparison, eager: Value, compiled: Value) -> Comparison:
    difference = describe_alias_difference(eager, compiled) if _values_agree(comparison) else None
    return comparison if difference is None else replace(comparison, finding="alias", detail=difference)


def _differ_in(finding: Finding, value: Value, expected: object, actual: object) -> Comparison:
    return Comparison(value.name, value.kind, finding, detail=str(ValuePair(str(expected), str(actual))))


def _compare_objects(eager: Value, compiled: Value) -> Comparison:
    expected, actual = eager.value, compiled.value
    # By name: a make() that defines classes defines new ones at every call.
    types, equal = [type(value).__qualname__ for value in (expected, actual)], _equal_objects(expected, actual)
    if types[0] == types[1] and equal:
        return Comparison(eager.name, eager.kind, "same")
    numbers = isinstance(expected, _NUMBERS) and isinstance(actual, _NUMBERS)
    finding: Finding = "dtype" if equal and numbers else "integer"
    return _differ_in(finding, eager, f"{types[0]} {expected!r:.80}", f"{types[1]} {actual!r:.80}")


def _equal_objects(expected: object, actual: object) -> bool:
    if type(expected).__eq__ is object.__eq__:
        return True
    try:
        return bool(expected == actual)
    except (TypeError, ValueError, RuntimeError):  # an __eq__ that returns arrays or tensors
        return True


def _compare_tensors(
    eager: Value,
    compiled: Value,
    reference: Value | None,
    noisy: Sequence[Value],
    smallest_scale: float,
    factor_of: DtypeFactor | None,
) -> Comparison:
    expected, actual = eager.value, compiled.value
    if expected.dtype == actual.dtype and metrics.have_same_values(expected, actual):
        return Comparison(eager.name, eager.kind, "same", scale=metrics.rms(expected))
    samples = [sample.value for sample in noisy if sample.is_tensor and sample.value.shape == expected.shape]
    exact = reference.value if reference is not None and reference.is_tensor else None
    if exact is None or exact.shape != expected.shape:
        exact = expected
    if _is_coarser(actual, expected):
        # The wrong dtype is a finding of its own: the values need only be as exact as that dtype can hold them.
        expected, samples = expected.to(actual.dtype), [sample.to(actual.dtype) for sample in samples]
    if not (expected.is_floating_point() or expected.is_complex()):
        return compare_integers(eager, expected, actual, exact, samples)
    factor = ROUNDING_FACTOR if factor_of is None else factor_of(expected.dtype)
    return compare_floats(eager, expected, actual, exact, samples, smallest_scale, factor)


def _is_coarser(first: torch.Tensor, second: torch.Tensor) -> bool:
    floating = first.is_floating_point() and second.is_floating_point()
    return floating and torch.finfo(first.dtype).eps > torch.finfo(second.dtype).eps


# Warnings that only one of two runs gave: evidence for readers of a report, never a verdict.


def compare_warnings(eager: Observation, compiled: Observation) -> tuple[str, ...]:
    """The warnings of eager alone, then those of compiled alone, each by its category and text."""
    return (
        *(f"only eager: {text}" for text in eager.warnings if text not in compiled.warnings),
        *(f"only compiled: {text}" for text in compiled.warnings if text not in eager.warnings),
    )
