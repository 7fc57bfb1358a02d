"""CUDA's libdevice for the interpreter, in which Triton's declarations of it are empty and give None.

Every function is computed by torch in the dtype of its operands, as libdevice has one for float32 and one for float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl

from fuzzcompile.compiler.target.interpreted.numbers import Array, as_torch, numbers, pack, tensor
from fuzzcompile.compiler.target.interpreted.shapes import aligned

Compute = Callable[..., torch.Tensor]


def _fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (x.double() * y.double() + z.double()).to(x.dtype)


def _away_from_zero(x: torch.Tensor) -> torch.Tensor:
    whole = torch.trunc(x)
    return whole + torch.where((x - whole).abs() >= 0.5, torch.sign(x), torch.zeros_like(x))


def _exponent(x: torch.Tensor) -> torch.Tensor:
    """The exponent of the leading bit, as ``ilogb`` gives it for finite numbers other than 0."""
    return torch.frexp(x).exponent - 1


_SAME: dict[str, Compute] = {
    name: getattr(torch, name)
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf", "erfc", "erfinv", "tanh",
        "sinh", "cosh", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "pow", "floor",
        "ceil", "trunc", "fmod", "hypot", "copysign", "lgamma", "abs", "ldexp", "nextafter", "fmin", "fmax",
    )
}  # fmt: skip
_FLOATING: dict[str, Compute] = {
    **_SAME,
    "nearbyint": torch.round,
    "rint": torch.round,
    "round": _away_from_zero,
    "fma": _fused,
    "fma_rn": _fused,
    "div_rn": torch.div,
    "mul_rn": torch.mul,
    "add_rn": torch.add,
    "sub_rn": torch.sub,
    "sqrt_rn": torch.sqrt,
    "rcp_rn": torch.reciprocal,
    "nextafterf": torch.nextafter,
    "fast_tanhf": torch.tanh,
    "fast_expf": torch.exp,
    "fast_dividef": torch.div,
    "cbrt": lambda x: torch.sign(x) * x.abs().double().pow(1 / 3).to(x.dtype),
    "tgamma": lambda x: (
        torch.exp(torch.lgamma(x))
        * torch.where((x < 0) & (torch.floor(x) % 2 != 0), -torch.ones_like(x), torch.ones_like(x))
    ),
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "erfcx": torch.special.erfcx,
    "normcdf": torch.special.ndtr,
}
_TO_INT32: dict[str, Compute] = {
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "signbit": torch.signbit,
    "isfinited": torch.isfinite,
    "finitef": torch.isfinite,
    "ilogb": _exponent,
}
_TO_INT64: dict[str, Compute] = {"llrint": torch.round, "llround": _away_from_zero}


def _function(compute: Compute, result: Any) -> Callable[..., Any]:
    """The function on Triton tensors; ``result`` is its dtype, None for that of the widest operand."""

    def call(*operands: Any, **options: object) -> Any:
        given = [operand for operand in operands if isinstance(operand, tl.tensor)]
        widest = max((operand.dtype.scalar for operand in given), key=lambda dtype: _rank(dtype))
        arrays = aligned([_operand(operand, widest) for operand in operands])
        computed: Array = compute(*map(as_torch, arrays)).numpy()
        return tensor(pack(computed, widest if result is None else result), widest if result is None else result)

    return call


def _rank(dtype: Any) -> tuple[bool, int]:
    return bool(dtype.is_floating()), int(dtype.primitive_bitwidth)


def _operand(value: Any, widest: Any) -> Array:
    """An operand as an array; a Python number takes the dtype of the widest tensor."""
    if isinstance(value, tl.tensor):
        return numbers(value.handle.data, value.dtype)
    plain = value.value if isinstance(value, tl.constexpr) else value
    return numbers(pack(np.array([plain], dtype=np.float64), widest), widest)


def functions() -> dict[str, Callable[..., Any]]:
    """Return the replacement of each function of libdevice that is known here."""
    tables = ((_FLOATING, None), (_TO_INT32, tl.int32), (_TO_INT64, tl.int64))
    return {name: _function(compute, result) for table, result in tables for name, compute in table.items()}
