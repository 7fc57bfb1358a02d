"""The interpreter's builder, which computes each operation of Triton's IR, with its wrong operations mended.

:data:`MENDED` names each operation that is replaced and by what. An operation takes the builder and handles of the
interpreter (an array and a Triton dtype), and gives a handle.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from fuzzcompile.compiler.target.interpreted import memory, shapes
from fuzzcompile.compiler.target.interpreted.numbers import Array, as_torch, cast, computed, handle, numbers

Operation = Callable[..., Any]
_Handle = interpreter.TensorHandle


def _unary(builder: Any, operand: Any, operation: Callable[..., Array]) -> Any:
    return computed(operation, operand.dtype, operand)


def _binary(builder: Any, left: Any, right: Any, operation: Callable[..., Array]) -> Any:
    if left.data.dtype == np.bool_ and right.data.dtype == np.bool_ and operation in _OF_BITS:
        wide = operation(left.data.astype(np.int8), right.data.astype(np.int8))
        return _Handle((wide & 1).astype(np.bool_), left.dtype.scalar)
    return computed(operation, left.dtype, left, right)


# On booleans these wrap around in Triton, as on integers of one bit; NumPy saturates or refuses.
_OF_BITS = (np.add, np.subtract, np.multiply)


def _ternary(builder: Any, first: Any, second: Any, third: Any, operation: Callable[..., Array]) -> Any:
    return computed(operation, third.dtype, first, second, third)


def _select(builder: Any, condition: Any, left: Any, right: Any) -> Any:
    return _Handle(np.where(condition.data, left.data, right.data), right.dtype.scalar)


def _clamp(builder: Any, value: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
    if propagate_nans == interpreter._ir.PROPAGATE_NAN.NONE:
        return computed(lambda x, a, b: np.fmin(np.fmax(x, a), b), value.dtype, value, low, high)
    return computed(np.clip, value.dtype, value, low, high)


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Rounds twice where the product is not exact in float64, as float64's is not."""
    return computed(lambda *given: _one_rounding(*given), z.dtype, x, y, z)


def _one_rounding(x: Array, y: Array, z: Array) -> Array:
    product = np.multiply(x, y, dtype=np.float64)
    total: Array = np.add(product, z, dtype=np.float64).astype(z.dtype)
    return total


def _rsqrt(builder: Any, operand: Any) -> Any:
    return computed(lambda x: np.reciprocal(np.sqrt(x)), operand.dtype, operand)


def _maximum_number(builder: Any, left: Any, right: Any) -> Any:
    return computed(np.fmax, left.dtype, left, right)


def _minimum_number(builder: Any, left: Any, right: Any) -> Any:
    return computed(np.fmin, left.dtype, left, right)


def _shift_right(builder: Any, left: Any, right: Any) -> Any:
    signed = interpreter._get_signed_np_dtype
    shifted = np.right_shift(left.data.view(signed(left.data.dtype)), right.data.view(signed(right.data.dtype)))
    return _Handle(shifted, left.dtype.scalar)


def _high_product(builder: Any, left: Any, right: Any) -> Any:
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


def _cast(builder: Any, source: Any, target: Any, *rest: object) -> Any:
    return cast(source, target)


def _float_cast(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
    if rounding == interpreter._ir.ROUNDING_MODE.RTZ:
        raise NotImplementedError("casts that round towards zero")
    return cast(source, target)


def _dot(builder: Any, a: Any, b: Any, accumulator: Any, *rest: object) -> Any:
    """Products of float16, bfloat16 and float8 are exact in float32, in which they are added."""
    kind = np.promote_types(accumulator.data.dtype, np.float32) if accumulator.dtype.is_floating() else np.int64
    total = np.matmul(numbers(a.data, a.dtype).astype(kind), numbers(b.data, b.dtype).astype(kind))
    return handle(total + numbers(accumulator.data, accumulator.dtype), accumulator.dtype)


def _erf(builder: Any, operand: Any) -> Any:
    return computed(lambda x: torch.erf(as_torch(x)).numpy(), operand.dtype, operand)


MENDED: MappingProxyType[str, Operation] = MappingProxyType(
    {
        "unary_op": _unary,
        "binary_op": _binary,
        "ternary_op": _ternary,
        "create_select": _select,
        "create_clampf": _clamp,
        "create_fma": _fma,
        "create_rsqrt": _rsqrt,
        "create_erf": _erf,
        "create_maxnumf": _maximum_number,
        "create_minnumf": _minimum_number,
        "create_ashr": _shift_right,
        "create_umulhi": _high_product,
        "cast_impl": _cast,
        "create_fp_to_fp": _float_cast,
        "create_dot": _dot,
        "create_masked_load": memory.load,
        "create_masked_store": memory.store,
        "create_atomic_rmw": memory.atomic,
        "create_atomic_cas": memory.compare_and_swap,
        **shapes.OPERATIONS,
    }
)
