"""Values as Triton's interpreter holds them, and the casts and arithmetic that it gets wrong.

The interpreter keeps bfloat16 and float8 as bit patterns in unsigned integers, truncates where a GPU rounds to nearest
even, and does arithmetic on the patterns. Here such values are widened to float32, which holds all of them, and rounded
by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

Array = np.ndarray[Any, np.dtype[Any]]

_PACKED: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
}


def packed(dtype: Any) -> torch.dtype | None:
    """The torch dtype of a Triton dtype that NumPy lacks; None for one that NumPy has."""
    return _PACKED.get(dtype.scalar.name)


def as_torch(data: Array) -> torch.Tensor:
    """The array as a tensor of the same shape, without a copy if it is contiguous and writable."""
    whole = np.ascontiguousarray(data).reshape(data.shape)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())


def numbers(data: Array, dtype: Any) -> Array:
    """The numbers that ``data`` stands for in the Triton dtype: float32 for bfloat16 and float8."""
    kind = packed(dtype)
    if kind is None:
        return data
    signed = np.int16 if data.dtype.itemsize == 2 else np.int8
    widened: Array = as_torch(data.view(signed)).view(kind).float().numpy()
    return widened


def pack(data: Array, dtype: Any) -> Array:
    """Numbers as the interpreter holds them in the Triton dtype, rounded to nearest even."""
    kind, held = packed(dtype), interpreter._get_np_dtype(dtype.scalar)
    if kind is None:
        return data if data.dtype == held else data.astype(held)
    signed = torch.int16 if held.itemsize == 2 else torch.int8
    patterns: Array = as_torch(data).to(kind).view(signed).numpy().view(held)
    return patterns


def handle(data: Array, dtype: Any) -> Any:
    """A handle of the interpreter on numbers, packed in the Triton dtype."""
    return interpreter.TensorHandle(pack(data, dtype), dtype.scalar)


def tensor(data: Array, dtype: Any) -> Any:
    """A Triton tensor of packed data, whose first axis is that of programs; a scalar if it has no other."""
    scalar, shape = dtype.scalar, list(data.shape[1:])
    return tl.tensor(interpreter.TensorHandle(data, scalar), tl.block_type(scalar, shape) if shape else scalar)


def computed(operation: Callable[..., Array], result: Any, *operands: Any) -> Any:
    """``operation`` on the numbers of handles, rounded to the Triton dtype ``result`` unless it is boolean."""
    data = operation(*(numbers(operand.data, operand.dtype) for operand in operands))
    if data.dtype == np.bool_:
        return interpreter.TensorHandle(data, tl.int1)
    return handle(data, result)


def cast(source: Any, target: Any) -> Any:
    """A handle's value in another Triton dtype, rounded to nearest even."""
    return handle(numbers(source.data, source.dtype), target)
