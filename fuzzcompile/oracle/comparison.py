"""Comparing one observable of the compiled run with the same one of eager and the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fuzzcompile.execution.observation import Value
from fuzzcompile.oracle import metrics
from fuzzcompile.oracle.aliasing import alias_difference
from fuzzcompile.oracle.evidence import Comparison, Finding
from fuzzcompile.oracle.floats import compare_floats
from fuzzcompile.oracle.integers import compare_integers

__all__ = ["Comparison", "compare"]

_NUMBERS = (int, float, complex)


def compare(
    eager: Value,
    compiled: Value | None,
    reference: Value | None,
    noisy: Sequence[Value],
    *,
    smallest_scale: float = 0.0,
) -> Comparison:
    """Compare one observable.

    Args:
        eager: the value of the eager run, in its native dtype.
        compiled: the value of the compiled run; None where it has none of that name.
        reference: the float64 value; None where there is no reference: eager then stands in for it.
        noisy: the values of the perturbed eager runs.
        smallest_scale: size below which the output counts as exactly zero (a gradient that vanishes by
            symmetry has nothing but rounding in it).
    """
    if compiled is None:
        return Comparison(eager.name, eager.kind, "missing", detail="only eager has it")
    if eager.is_rounded_number and type(eager.value) is type(compiled.value):
        eager, compiled = eager.as_tensor(), compiled.as_tensor()
        reference, noisy = reference and reference.as_tensor(), [sample.as_tensor() for sample in noisy]
    if not eager.is_tensor or not compiled.is_tensor:
        return _with_aliases(_compare_objects(eager, compiled), eager, compiled)
    one, other = eager.value, compiled.value
    if one.shape != other.shape:
        return _metadata(eager, "shape", f"eager {tuple(one.shape)}, compiled {tuple(other.shape)}")
    comparison = _compare_tensors(eager, compiled, reference, noisy, smallest_scale)
    if _values_agree(comparison):
        if one.dtype != other.dtype:
            return _metadata(eager, "dtype", f"eager {one.dtype}, compiled {other.dtype}")
        if eager.form != compiled.form:
            return _metadata(eager, "dtype", f"eager {eager.form or 'Tensor'}, compiled {compiled.form or 'Tensor'}")
        comparison = _with_aliases(comparison, eager, compiled)
        if comparison.finding != "alias" and eager.kind == "output" and eager.stride != compiled.stride:
            return _metadata(eager, "stride", f"eager {eager.stride}, compiled {compiled.stride}")
    return comparison


def _values_agree(comparison: Comparison) -> bool:
    """Whether nothing is wrong with the values for certain: a mere suspicion hides no difference of metadata."""
    suspicion = comparison.finding == "far" and comparison.within_scaled_tolerance
    return suspicion or comparison.finding in ("same", "close", "wild")


def _with_aliases(comparison: Comparison, eager: Value, compiled: Value) -> Comparison:
    """The comparison, or a finding of "alias" where the values agree and what they share memory with does not."""
    difference = alias_difference(eager, compiled) if _values_agree(comparison) else None
    return comparison if difference is None else replace(comparison, finding="alias", detail=difference)


def _metadata(value: Value, finding: Finding, detail: str) -> Comparison:
    return Comparison(value.name, value.kind, finding, detail=detail)


def _compare_objects(eager: Value, compiled: Value) -> Comparison:
    one, other = eager.value, compiled.value
    # By name: a make() that defines its classes makes new ones at every call.
    alike = _type_name(one) == _type_name(other)
    equal = _equal_objects(one, other)
    if alike and equal:
        return Comparison(eager.name, eager.kind, "same")
    finding: Finding = "dtype" if equal and isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS) else "integer"
    shown = f"eager {_type_name(one)} {one!r:.80}, compiled {_type_name(other)} {other!r:.80}"
    return Comparison(eager.name, eager.kind, finding, detail=shown)


def _type_name(value: object) -> str:
    return type(value).__qualname__


def _equal_objects(one: object, other: object) -> bool:
    """Whether two objects are equal; those that cannot tell (no ``__eq__`` of their own) count as equal."""
    if type(one).__eq__ is object.__eq__:
        return True
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # an __eq__ that gives arrays or tensors
        return True


def _compare_tensors(
    eager: Value, compiled: Value, reference: Value | None, noisy: Sequence[Value], smallest_scale: float
) -> Comparison:
    one, other = eager.value, compiled.value
    if one.dtype == other.dtype and metrics.same_values(one, other):
        return Comparison(eager.name, eager.kind, "same", scale=metrics.rms(one))
    samples = [v.value for v in noisy if v.is_tensor and v.value.shape == one.shape]
    exact = reference.value if reference is not None and reference.is_tensor else None
    if exact is None or exact.shape != one.shape:
        exact = one
    if _is_coarser(other, one):
        # Of the wrong dtype, which is what is the matter with it: its values are held to what that dtype can tell.
        one, samples = one.to(other.dtype), [sample.to(other.dtype) for sample in samples]
    if not (one.is_floating_point() or one.is_complex()):
        return compare_integers(eager, one, other, exact, samples)
    return compare_floats(eager, one, other, exact, samples, smallest_scale)


def _is_coarser(one: torch.Tensor, other: torch.Tensor) -> bool:
    floating = one.is_floating_point() and other.is_floating_point()
    return floating and torch.finfo(one.dtype).eps > torch.finfo(other.dtype).eps
