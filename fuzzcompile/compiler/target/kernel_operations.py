"""The interpreter's builder, which computes each operation of Triton's IR, with its wrong operations mended.

:data:`CORRECTED_OPERATIONS` names each operation that is replaced and by what. An operation takes the builder and
handles of the
interpreter (an array and a Triton dtype), and gives a handle.
"""

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
    cast_handle,
    compute_packed,
    make_handle,
    make_tensor,
    pack_numbers,
    to_numbers,
)

Operation = Callable[..., Any]
_Handle = interpreter.TensorHandle


def _compute_unary(builder: Any, operand: Any, operation: Callable[..., Array]) -> Any:
    return compute_packed(operation, operand.dtype, operand)


def _compute_binary(builder: Any, left: Any, right: Any, operation: Callable[..., Array]) -> Any:
    if left.data.dtype == np.bool_ and right.data.dtype == np.bool_ and operation in _OF_BITS:
        wide = operation(left.data.astype(np.int8), right.data.astype(np.int8))
        return _Handle((wide & 1).astype(np.bool_), left.dtype.scalar)
    return compute_packed(operation, left.dtype, left, right)


# On booleans these wrap around in Triton, as on integers of one bit; NumPy saturates or refuses.
_OF_BITS = (np.add, np.subtract, np.multiply)


def _compute_ternary(builder: Any, first: Any, second: Any, third: Any, operation: Callable[..., Array]) -> Any:
    return compute_packed(operation, third.dtype, first, second, third)


def _compute_select(builder: Any, condition: Any, left: Any, right: Any) -> Any:
    return _Handle(np.where(condition.data, left.data, right.data), right.dtype.scalar)


def _compute_clamp(builder: Any, value: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
    if propagate_nans == interpreter._ir.PROPAGATE_NAN.NONE:
        return compute_packed(lambda x, a, b: np.fmin(np.fmax(x, a), b), value.dtype, value, low, high)
    return compute_packed(np.clip, value.dtype, value, low, high)


def _compute_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Rounds twice where the product is not exact in float64, as float64's is not."""
    return compute_packed(lambda *given: _one_rounding(*given), z.dtype, x, y, z)


def _one_rounding(x: Array, y: Array, z: Array) -> Array:
    product = np.multiply(x, y, dtype=np.float64)
    total: Array = np.add(product, z, dtype=np.float64).astype(z.dtype)
    return total


def _compute_rsqrt(builder: Any, operand: Any) -> Any:
    return compute_packed(lambda x: np.reciprocal(np.sqrt(x)), operand.dtype, operand)


def _compute_maximum(builder: Any, left: Any, right: Any) -> Any:
    return compute_packed(np.fmax, left.dtype, left, right)


def _compute_minimum(builder: Any, left: Any, right: Any) -> Any:
    return compute_packed(np.fmin, left.dtype, left, right)


def _compute_shift(builder: Any, left: Any, right: Any) -> Any:
    signed = interpreter._get_signed_np_dtype
    shifted = np.right_shift(left.data.view(signed(left.data.dtype)), right.data.view(signed(right.data.dtype)))
    return _Handle(shifted, left.dtype.scalar)


def _multiply_high(builder: Any, left: Any, right: Any) -> Any:
    """The upper half of the product of unsigned integers."""
    bits = left.data.itemsize * 8
    unsigned = np.dtype(f"uint{bits}")
    a, b = left.data.view(unsigned), right.data.view(unsigned)
    if bits == 64:
        high = np.array(
            [(int(x) * int(y)) >> 64 for x, y in zip(*map(np.ravel, np.broadcast_arrays(a, b)), strict=True)]
        )
        high = high.astype(unsigned).reshape(np.broadcast_shapes(a.shape, b.shape))
    else:
        wide = np.dtype(f"uint{2 * bits}")
        high = ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(unsigned)
    return _Handle(high.view(left.data.dtype), left.dtype.scalar)


def _convert_type(builder: Any, source: Any, target: Any, *rest: object) -> Any:
    return cast_handle(source, target)


def _convert_float(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
    if rounding == interpreter._ir.ROUNDING_MODE.RTZ:
        raise NotImplementedError("casts that round towards zero")
    return cast_handle(source, target)


def _compute_dot(builder: Any, a: Any, b: Any, accumulator: Any, *rest: object) -> Any:
    """Products of float16, bfloat16 and float8 are exact in float32, in which they are added."""
    kind = np.promote_types(accumulator.data.dtype, np.float32) if accumulator.dtype.is_floating() else np.int64
    total = np.matmul(to_numbers(a.data, a.dtype).astype(kind), to_numbers(b.data, b.dtype).astype(kind))
    return make_handle(total + to_numbers(accumulator.data, accumulator.dtype), accumulator.dtype)


def _compute_erf(builder: Any, operand: Any) -> Any:
    return compute_packed(lambda x: torch.erf(as_torch_tensor(x)).numpy(), operand.dtype, operand)


CORRECTED_OPERATIONS: MappingProxyType[str, Operation] = MappingProxyType(
    {
        "unary_op": _compute_unary,
        "binary_op": _compute_binary,
        "ternary_op": _compute_ternary,
        "create_select": _compute_select,
        "create_clampf": _compute_clamp,
        "create_fma": _compute_fma,
        "create_rsqrt": _compute_rsqrt,
        "create_erf": _compute_erf,
        "create_maxnumf": _compute_maximum,
        "create_minnumf": _compute_minimum,
        "create_ashr": _compute_shift,
        "create_umulhi": _multiply_high,
        "cast_impl": _convert_type,
        "create_fp_to_fp": _convert_float,
        "create_dot": _compute_dot,
        "create_masked_load": block_values.load_masked,
        "create_masked_store": block_values.store_masked,
        "create_atomic_rmw": block_values.update_atomically,
        "create_atomic_cas": block_values.compare_and_swap,
        **block_values.OPERATIONS,
    }
)


# CUDA's libdevice for the interpreter, in which Triton's declarations of it are empty and give None.

LibdeviceFunction = Callable[..., torch.Tensor]


def _multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (x.double() * y.double() + z.double()).to(x.dtype)


def _round_away_from_zero(x: torch.Tensor) -> torch.Tensor:
    whole = torch.trunc(x)
    return whole + torch.where((x - whole).abs() >= 0.5, torch.sign(x), torch.zeros_like(x))


def _find_exponent(x: torch.Tensor) -> torch.Tensor:
    """The exponent of the leading bit, as ``ilogb`` gives it for finite numbers other than 0."""
    return torch.frexp(x).exponent - 1


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
    "fma": _multiply_add,
    "fma_rn": _multiply_add,
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
    "ilogb": _find_exponent,
}
_TO_INT64: dict[str, LibdeviceFunction] = {"llrint": torch.round, "llround": _round_away_from_zero}


def _make_function(compute: LibdeviceFunction, result: Any) -> Callable[..., Any]:
    """The function on Triton tensors; ``result`` is its dtype, None for that of the widest operand."""

    def call(*operands: Any, **options: object) -> Any:
        given = [operand for operand in operands if isinstance(operand, tl.tensor)]
        widest = max((operand.dtype.scalar for operand in given), key=lambda dtype: _rank_dtype(dtype))
        arrays = align_shapes([_as_operand(operand, widest) for operand in operands])
        computed: Array = compute(*map(as_torch_tensor, arrays)).numpy()
        return make_tensor(
            pack_numbers(computed, widest if result is None else result), widest if result is None else result
        )

    return call


def _rank_dtype(dtype: Any) -> tuple[bool, int]:
    return bool(dtype.is_floating()), int(dtype.primitive_bitwidth)


def _as_operand(value: Any, widest: Any) -> Array:
    """An operand as an array; a Python number takes the dtype of the widest tensor."""
    if isinstance(value, tl.tensor):
        return to_numbers(value.handle.data, value.dtype)
    plain = value.value if isinstance(value, tl.constexpr) else value
    return to_numbers(pack_numbers(np.array([plain], dtype=np.float64), widest), widest)


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
    """``tl.inline_asm_elementwise`` for one instruction on floating operands.

    Raises:
        NotImplementedError: the code is anything else.
    """
    code = asm.value if isinstance(asm, tl.constexpr) else asm
    match = _INSTRUCTION.fullmatch(code)
    operation = _ASSEMBLY_FUNCTIONS.get(match[1]) if match else None
    if match is None or operation is None or not match[2].endswith((".f32", ".f64")):
        raise NotImplementedError(f"the inline assembly {code!r}")
    order = [int(number) - 1 for number in re.findall(r"\$(\d+)", match[3])]
    operands = align_shapes([to_numbers(args[index].handle.data, args[index].dtype) for index in order])
    return _pack_result(operation(*operands), dtype)


def _pack_result(data: Array, dtype: Any) -> Any:
    return make_tensor(pack_numbers(data, dtype), dtype)
