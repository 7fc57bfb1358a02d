"""Comparing one observable of the compiled run with the same one of eager and the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fuzzcompile.execution.observation import Value
from fuzzcompile.oracle import metrics

# What is the matter with one output. "far" means farther from the reference than rounding explains.
Finding = Literal["same", "close", "wild", "far", "nonfinite", "integer", "dtype", "shape", "stride", "missing"]
# Eager and compiled apart by this share of the output's size, both within what rounding allows: no correct
# digits are left in eager itself.
_NO_DIGITS = 0.25
_NUMBERS = (int, float, complex)


@dataclass(frozen=True)
class Comparison:
    """Evidence for one output, mutated input or gradient."""

    name: str
    kind: str
    finding: Finding
    max_error_eager: float = 0.0
    max_error_compiled: float = 0.0
    rms_error_eager: float = 0.0
    rms_error_compiled: float = 0.0
    max_ulps_eager: float = 0.0
    max_ulps_compiled: float = 0.0
    noise_floor: float = 0.0
    scale: float = 0.0
    within_default_tolerance: bool = True
    within_scaled_tolerance: bool = True
    cosine: float | None = None
    torch_same: bool | None = None
    where: tuple[int, ...] | None = None
    at: dict[str, float | int | None] = field(default_factory=dict)
    detail: str = ""

    @property
    def error_ratio(self) -> float | None:
        """Compiled error over eager error; None where eager is exact."""
        return self.max_error_compiled / self.max_error_eager if self.max_error_eager > 0 else None

    @property
    def relative_error(self) -> float:
        """Compiled error in units of the output's own size."""
        return self.max_error_compiled / self.scale if self.scale > 0 else self.max_error_compiled


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
        return _compare_objects(eager, compiled)
    one, other = eager.value, compiled.value
    if one.shape != other.shape:
        return _metadata(eager, "shape", f"eager {tuple(one.shape)}, compiled {tuple(other.shape)}")
    comparison = _compare_tensors(eager, compiled, reference, noisy, smallest_scale)
    if comparison.finding in ("same", "close", "wild"):
        if one.dtype != other.dtype:
            return _metadata(eager, "dtype", f"eager {one.dtype}, compiled {other.dtype}")
        if eager.form != compiled.form:
            return _metadata(eager, "dtype", f"eager {eager.form or 'Tensor'}, compiled {compiled.form or 'Tensor'}")
        if eager.kind == "output" and eager.stride != compiled.stride:
            return _metadata(eager, "stride", f"eager {eager.stride}, compiled {compiled.stride}")
    return comparison


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


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def _equal_objects(one: Any, other: Any) -> bool:
    """Whether two objects are equal; those that cannot tell (no ``__eq__`` of their own) count as equal."""
    compares: Any = type(one).__eq__
    if compares is object.__eq__:
        return True
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # an __eq__ that gives arrays or tensors
        return True


def _compare_tensors(
    eager: Value, compiled: Value, reference: Value | None, noisy: Sequence[Value], smallest_scale: float
) -> Comparison:
    one, other = eager.value, compiled.value
    if one.dtype == other.dtype and bool((_distance(one, other) == 0).all()):
        return Comparison(eager.name, eager.kind, "same", scale=metrics.rms(metrics.widened(one)))
    samples = [v.value for v in noisy if v.is_tensor and v.value.shape == one.shape]
    exact = reference.value if reference is not None and reference.is_tensor else None
    if exact is None or exact.shape != one.shape:
        exact = one
    if not (one.is_floating_point() or one.is_complex()):
        return _compare_integers(eager, one, other, exact, samples)
    return _compare_floats(eager, one, other, exact, samples, smallest_scale)


def _compare_integers(
    eager: Value, one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor]
) -> Comparison:
    apart = _distance(one, other)
    # An index or a comparison that rounding alone can flip says nothing about the compiler. The samples are few:
    # where they flip some elements, as many others again, by as much, may flip in another run.
    sampled = [_distance(one, other_run) for other_run in (exact, *samples)]
    flips = torch.stack(sampled).amax(0)
    unexplained = (apart > 0) & (flips == 0)
    usual = metrics.ROUNDING_FACTOR * max(int((sample > 0).sum()) for sample in sampled)
    if int(unexplained.sum()) <= usual:
        unexplained &= apart > metrics.ROUNDING_FACTOR * metrics.largest(flips)
    finding: Finding = "integer" if bool(unexplained.any()) else "wild" if bool((apart > 0).any()) else "same"
    error = torch.where(unexplained, apart, torch.zeros_like(apart)) if finding == "integer" else apart
    where, at = _place(error, eager=one, compiled=other, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        max_error_eager=metrics.largest(_distance(one, exact)),
        max_error_compiled=metrics.largest(_distance(other, exact)),
        scale=metrics.rms(metrics.widened(exact)),
        within_default_tolerance=not bool((apart > 0).any()),
        within_scaled_tolerance=not bool((apart > 0).any()),
        where=where,
        at=at,
    )


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Distance in float64, but never 0 between integers that differ: beyond 2**53 float64 has not all of them."""
    apart = metrics.distance(one, other)
    if one.dtype != other.dtype or one.is_floating_point() or one.is_complex():
        return apart
    differ = (one != other).to(apart.device)
    return torch.where(differ, apart.clamp(min=1.0), apart)


def _compare_floats(
    eager: Value,
    one: torch.Tensor,
    other: torch.Tensor,
    exact: torch.Tensor,
    samples: list[torch.Tensor],
    smallest_scale: float,
) -> Comparison:
    error_eager, error_compiled = metrics.distance(one, exact), metrics.distance(other, exact)
    allowed = metrics.allowance(exact, one, samples, one.dtype)
    scale = max(metrics.rms(metrics.widened(exact)), smallest_scale)
    broken = _unexplained_nonfinite(one, other, exact, samples)
    finite = torch.isfinite(error_compiled)
    excess = torch.where(finite, error_compiled - allowed.bound, torch.zeros_like(error_compiled))
    apart = metrics.distance(one, other)
    finding: Finding = "close"
    if bool(broken.any()):
        finding, excess = "nonfinite", broken.to(excess.dtype)
    elif bool((excess > 0).any()):
        finding = "far"
    elif metrics.largest(torch.where(torch.isfinite(apart), apart, torch.zeros_like(apart))) > (
        _NO_DIGITS * max(scale, torch.finfo(one.dtype).tiny)
    ) or bool(torch.isinf(apart).any()):
        finding = "wild"
    where, at = _place(excess if finding in ("far", "nonfinite") else apart, eager=one, compiled=other, float64=exact)
    return Comparison(
        eager.name,
        eager.kind,
        finding,
        max_error_eager=metrics.largest(error_eager),
        max_error_compiled=metrics.largest(error_compiled),
        rms_error_eager=metrics.rms(error_eager),
        rms_error_compiled=metrics.rms(error_compiled),
        noise_floor=allowed.noise_floor,
        scale=scale,
        within_default_tolerance=metrics.within_default_tolerance(other, one),
        within_scaled_tolerance=metrics.within_scaled_tolerance(other, one, smallest_scale),
        cosine=metrics.cosine(other, exact),
        where=where,
        at=at,
    )


def _unexplained_nonfinite(
    one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor, samples: list[torch.Tensor]
) -> torch.Tensor:
    """Where compiled is NaN or infinite in a way that neither eager, a perturbed run nor the reference is."""
    kinds = _kind(other)
    explained = (kinds == _kind(one)) | (kinds == _kind(exact))
    for sample in samples:
        explained |= kinds == _kind(sample)
    return ~explained


def _kind(tensor: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +∞, 3 −∞."""
    wide = metrics.widened(tensor)
    if wide.is_complex():
        return torch.isnan(wide).long() + 2 * torch.isinf(wide).long()
    return torch.isnan(wide).long() + 2 * torch.isposinf(wide).long() + 3 * torch.isneginf(wide).long()


def _place(error: torch.Tensor, **runs: torch.Tensor) -> tuple[tuple[int, ...] | None, dict[str, float | int | None]]:
    """Index of the largest error and the values there, by run."""
    if error.numel() == 0:
        return None, {}
    flat = int(error.flatten().argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), error.shape))
    return where, {name: _scalar(tensor.flatten()[flat]) for name, tensor in runs.items()}


def _scalar(value: torch.Tensor) -> float | int | None:
    item = value.item()
    return abs(item) if isinstance(item, complex) else item
