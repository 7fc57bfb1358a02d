"""Operators of Inductor's loops in terms of torch's own operators on whole tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

Operator = Callable[..., object]
Reduced = torch.Tensor | tuple[torch.Tensor, ...]
Unary = Callable[[torch.Tensor], torch.Tensor]
_LOW = (torch.bfloat16, torch.float16)
_RENAMED = {
    "truediv": "true_divide",
    "int_truediv": "true_divide",
    "div_rn": "true_divide",
    "mul_rn": "mul",
    "eq": "eq",
    "maximum": "maximum",
    "minimum": "minimum",
    "pow": "pow",
    "mod": "fmod",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "xor": "bitwise_xor",
}


def loop_operator(name: str) -> Operator | None:
    """The function that computes operator ``name`` of a loop on tensors; None if none is known."""
    if name in _OWN:
        return _OWN[name]
    for place in (torch, torch.special):
        function = getattr(place, _RENAMED.get(name, name), None)
        if callable(function) and not name.startswith("_"):
            return functools.partial(_with_tensors, function)
    return None


def reduce(kind: str, values: Sequence[torch.Tensor], dims: Sequence[int]) -> Reduced:
    """Reduce values over the trailing dimensions ``dims``, which are kept with size 1.

    Args:
        kind: as Inductor names it: ``sum``, ``argmax``, ``welford_combine``.
        values: one tensor; mean, squares and weights for ``welford_combine``.
        dims: the trailing dimensions.

    Raises:
        KeyError: a kind of reduction that is not known.
    """
    if kind == "welford_combine":
        return _welford_combine(values, list(dims))
    return _REDUCTIONS[kind](values[0], list(dims))


def real(dtype: torch.dtype, *, double: bool) -> torch.dtype:
    """The dtype that values of ``dtype`` are computed in: bfloat16 and float16 are computed in float32."""
    if not dtype.is_floating_point:
        return dtype
    if double:
        return torch.float64
    return torch.float32 if dtype in _LOW else dtype


def _with_tensors(function: Operator, *args: object, **kwargs: object) -> object:
    return function(*(torch.as_tensor(arg) if isinstance(arg, (bool, int, float)) else arg for arg in args), **kwargs)


def _floordiv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _truncdiv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _to_int(rounded: Unary, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rounded(x).to(dtype)


def _where(condition: torch.Tensor, then: object, otherwise: object) -> torch.Tensor:
    return torch.where(condition.bool(), torch.as_tensor(then), torch.as_tensor(otherwise))


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


_OWN: dict[str, Operator] = {
    "identity": lambda x: x,
    "floordiv": _floordiv,
    "truncdiv": _truncdiv,
    "where": _where,
    "sigmoid": _sigmoid,
    "fma": lambda x, y, z: x * y + z,
    "libdevice_exp": torch.exp,
    "not_": torch.logical_not,
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "trunc_to_int": functools.partial(_to_int, torch.trunc),
    "floor_to_int": functools.partial(_to_int, torch.floor),
    "ceil_to_int": functools.partial(_to_int, torch.ceil),
    "round_to_int": functools.partial(_to_int, torch.round),
    "modified_bessel_i0": torch.special.i0,
    "modified_bessel_i1": torch.special.i1,
    "igamma": torch.special.gammainc,
    "igammac": torch.special.gammaincc,
    "gammainc": torch.special.gammainc,
    "gammaincc": torch.special.gammaincc,
    "polygamma": lambda n, x: torch.polygamma(int(n.reshape(-1)[0]), x),
    "frexp": lambda x: (torch.frexp(x).mantissa, torch.frexp(x).exponent),
}


# -- reductions -------------------------------------------------------------------------------------


def _sum(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return value.sum(dims, keepdim=True, dtype=value.dtype if value.dtype is not torch.bool else None)


def _prod(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return _flattened(value, dims).prod(-1, dtype=value.dtype).reshape(_kept(value, dims))


def _any(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return value.bool().any(dim=tuple(dims), keepdim=True)


def _extreme(function: Callable[..., torch.Tensor], value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    if value.dtype is torch.bool:
        return _extreme(function, value.to(torch.uint8), dims).bool()
    return function(value, dim=dims, keepdim=True)


def _place(function: Callable[..., torch.Tensor], value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    flat = _flattened(value, dims)
    flat = flat.to(torch.uint8) if flat.dtype is torch.bool else flat
    # The first of equal ones, as the loops have it; torch promises none.
    best = function(flat, dim=-1, keepdim=True)
    hits = (flat == best) | ((flat != flat) & (best != best))
    first: torch.Tensor = hits.to(torch.uint8).argmax(-1)
    return first.reshape(_kept(value, dims))


def _xor_sum(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    flat = _flattened(value, dims)
    result = flat[..., 0]
    for position in range(1, flat.shape[-1]):
        result = result ^ flat[..., position]
    return result.reshape(_kept(value, dims))


def _welford_reduce(value: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, ...]:
    mean = value.mean(dims, keepdim=True)
    count = math.prod(value.shape[dim] for dim in dims)
    return mean, ((value - mean) ** 2).sum(dims, keepdim=True), torch.full_like(mean, count)


def _welford_combine(value: Sequence[torch.Tensor], dims: list[int]) -> tuple[torch.Tensor, ...]:
    means, squares, weights = torch.broadcast_tensors(*value)  # type: ignore[no-untyped-call]
    weight = weights.sum(dims, keepdim=True)
    mean = (means * weights).sum(dims, keepdim=True) / torch.where(weight == 0, torch.ones_like(weight), weight)
    return mean, (squares + weights * (means - mean) ** 2).sum(dims, keepdim=True), weight


def _online_softmax(value: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, ...]:
    largest = value.amax(dims, keepdim=True)
    return largest, torch.exp(value - largest).sum(dims, keepdim=True)


_REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int]], Reduced]] = {
    "sum": _sum,
    "dot": _sum,
    "prod": _prod,
    "any": _any,
    "max": functools.partial(_extreme, torch.amax),
    "min": functools.partial(_extreme, torch.amin),
    "argmax": functools.partial(_place, torch.amax),
    "argmin": functools.partial(_place, torch.amin),
    "xor_sum": _xor_sum,
    "welford_reduce": _welford_reduce,
    "online_softmax_reduce": _online_softmax,
}


def _kept(value: torch.Tensor, dims: list[int]) -> list[int]:
    return [1 if dim in dims else size for dim, size in enumerate(value.shape)]


def _flattened(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """The trailing dimensions ``dims`` as one."""
    return value.reshape(*value.shape[: len(value.shape) - len(dims)], -1)
