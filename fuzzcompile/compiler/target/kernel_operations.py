"""The interpreter's builder, which computes each operation of Triton's IR on handles, with its wrong ones mended."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from fuzzcompile.compiler.target import block_values
from fuzzcompile.compiler.target.block_values import (
    Array,
    align_shapes,
    as_torch_tensor,
    compute_packed,
    make_handle,
    make_tensor,
    pack_numbers,
    to_numbers,
)

Operation = Callable[..., Any]
_Handle = interpreter.TensorHandle
# On booleans these wrap around in Triton, as on integers of one bit; NumPy saturates or refuses.
_OF_BITS = (np.add, np.subtract, np.multiply)


def _on_numbers(operation: Callable[..., Array]) -> Operation:
    """``operation`` on the numbers of its operands, rounded to the dtype of the last."""
    return lambda builder, *operands: compute_packed(operation, operands[-1].dtype, *operands)


def _compute_elementwise(builder: Any, *operands_and_operation: Any) -> Any:
    *operands, operation = operands_and_operation
    if operation in _OF_BITS and all(operand.data.dtype == np.bool_ for operand in operands):
        wide = operation(*(operand.data.astype(np.int8) for operand in operands))
        return _Handle((wide & 1).astype(np.bool_), operands[0].dtype.scalar)
    return compute_packed(operation, operands[-1].dtype, *operands)


def _compute_clamp(builder: Any, value: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
    if propagate_nans == interpreter._ir.PROPAGATE_NAN.NONE:
        return compute_packed(lambda x, a, b: np.fmin(np.fmax(x, a), b), value.dtype, value, low, high)
    return compute_packed(np.clip, value.dtype, value, low, high)


def _round_once(x: Array, y: Array, z: Array) -> Array:
    """``x * y + z``, which rounds twice where the product is not exact in float64, as float64's is not."""
    product = np.multiply(x, y, dtype=np.float64)
    total: Array = np.add(product, z, dtype=np.float64).astype(z.dtype)
    return total


def _compute_shift(builder: Any, left: Any, right: Any) -> Any:
    signed = interpreter._get_signed_np_dtype
    shifted = np.right_shift(left.data.view(signed(left.data.dtype)), right.data.view(signed(right.data.dtype)))
    return _Handle(shifted, left.dtype.scalar)


def _multiply_high(builder: Any, left: Any, right: Any) -> Any:
    bits = left.data.itemsize * 8
    unsigned = np.dtype(f"uint{bits}")
    wide = object if bits == 64 else np.dtype(f"uint{2 * bits}")  # Python's integers, where NumPy has none so wide
    product = left.data.view(unsigned).astype(wide) * right.data.view(unsigned).astype(wide)
    return _Handle((product >> bits).astype(unsigned).view(left.data.dtype), left.dtype.scalar)


def _convert_type(builder: Any, source: Any, target: Any, *rest: object) -> Any:
    """A handle's value in another Triton dtype, rounded to nearest even."""
    if interpreter._ir.ROUNDING_MODE.RTZ in rest:
        raise NotImplementedError("casts that round towards zero")
    return make_handle(to_numbers(source.data, source.dtype), target)


def _compute_dot(builder: Any, a: Any, b: Any, accumulator: Any, *rest: object) -> Any:
    """Products of float16, bfloat16 and float8 are exact in float32, in which they are added."""
    kind = np.promote_types(accumulator.data.dtype, np.float32) if accumulator.dtype.is_floating() else np.int64
    total = np.matmul(to_numbers(a.data, a.dtype).astype(kind), to_numbers(b.data, b.dtype).astype(kind))
    return make_handle(total + to_numbers(accumulator.data, accumulator.dtype), accumulator.dtype)


CORRECTED_OPERATIONS: MappingProxyType[str, Operation] = MappingProxyType(
    {
        "unary_op": _compute_elementwise,
        "binary_op": _compute_elementwise,
        "ternary_op": _compute_elementwise,
        "create_select": lambda builder, condition, left, right: _Handle(
            np.where(condition.data, left.data, right.data), right.dtype.scalar
        ),
        "create_clampf": _compute_clamp,
        "create_fma": _on_numbers(_round_once),
        "create_rsqrt": _on_numbers(lambda x: np.reciprocal(np.sqrt(x))),
        "create_erf": _on_numbers(lambda x: torch.erf(as_torch_tensor(x)).numpy()),
        "create_maxnumf": _on_numbers(np.fmax),
        "create_minnumf": _on_numbers(np.fmin),
        "create_ashr": _compute_shift,
        "create_umulhi": _multiply_high,
        "cast_impl": _convert_type,
        "create_fp_to_fp": _convert_type,
        "create_dot": _compute_dot,
        **block_values.OPERATIONS,
    }
)


# CUDA's libdevice for the interpreter, in which Triton's declarations of it are empty and give None.

LibdeviceFunction = Callable[..., torch.Tensor]


def _round_away_from_zero(x: torch.Tensor) -> torch.Tensor:
    whole = torch.trunc(x)
    return whole + torch.where((x - whole).abs() >= 0.5, torch.sign(x), torch.zeros_like(x))


_SAME: dict[str, LibdeviceFunction] = {
    name: getattr(torch, name)
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf", "erfc", "erfinv", "tanh",
        "sinh", "cosh", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "pow", "floor",
        "ceil", "trunc", "fmod", "hypot", "copysign", "lgamma", "abs", "ldexp", "nextafter", "fmin", "fmax",
    )
}  # fmt: skip
_FLOATING: dict[str, LibdeviceFunction] = {
    **_SAME,
    "nearbyint": torch.round,
    "rint": torch.round,
    "round": _round_away_from_zero,
    **dict.fromkeys(("fma", "fma_rn"), lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype)),
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
_TO_INT32: dict[str, LibdeviceFunction] = {
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "signbit": torch.signbit,
    "isfinited": torch.isfinite,
    "finitef": torch.isfinite,
    "ilogb": lambda x: torch.frexp(x).exponent - 1,
}
_TO_INT64: dict[str, LibdeviceFunction] = {"llrint": torch.round, "llround": _round_away_from_zero}


def _make_function(compute: LibdeviceFunction, result: Any) -> Callable[..., Any]:

    def call(*operands: Any, **options: object) -> Any:
        given = [operand for operand in operands if isinstance(operand, tl.tensor)]
        dtypes = (operand.dtype.scalar for operand in given)
        widest = max(dtypes, key=lambda dtype: (dtype.is_floating(), dtype.primitive_bitwidth))
        arrays = align_shapes([_as_operand(operand, widest) for operand in operands])
        computed: Array = compute(*map(as_torch_tensor, arrays)).numpy()
        return make_tensor(computed, widest if result is None else result)

    return call


def _as_operand(value: Any, widest: Any) -> Array:
    if isinstance(value, tl.tensor):
        return to_numbers(value.handle.data, value.dtype)
    plain = np.array([tl.core._unwrap_if_constexpr(value)], dtype=np.float64)
    return to_numbers(pack_numbers(plain, widest), widest)


def make_libdevice_functions() -> dict[str, Callable[..., Any]]:
    """Return the replacement of each function of libdevice that is known here."""
    tables = ((_FLOATING, None), (_TO_INT32, tl.int32), (_TO_INT64, tl.int64))
    return {name: _make_function(compute, result) for table, result in tables for name, compute in table.items()}


# Single PTX instructions that Inductor writes into kernels, computed on arrays.

# Modifiers say how to round, flush and approximate, which no verdict rests on.
_INSTRUCTION = re.compile(r"\s*([a-z0-9]+)((?:\.[a-z0-9]+)*)\s+\$0((?:\s*,\s*\$\d+)+)\s*;\s*")
_ASSEMBLY_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": lambda x, y, z: x.astype(np.float64) * y + z,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "abs": np.abs,
    "neg": np.negative,
}


def compute_assembly(
    asm: Any, constraints: Any, args: Sequence[Any], dtype: Any, is_pure: Any, **options: object
) -> Any:
    """``tl.inline_asm_elementwise`` for one instruction on floating operands; NotImplementedError for other code."""
    code = tl.core._unwrap_if_constexpr(asm)
    match = _INSTRUCTION.fullmatch(code)
    operation = _ASSEMBLY_FUNCTIONS.get(match[1]) if match else None
    if match is None or operation is None or not match[2].endswith((".f32", ".f64")):
        raise NotImplementedError(f"the inline assembly {code!r}")
    order = [int(number) - 1 for number in re.findall(r"\$(\d+)", match[3])]
    operands = align_shapes([to_numbers(args[index].handle.data, args[index].dtype) for index in order])
    return make_tensor(operation(*operands), dtype)
