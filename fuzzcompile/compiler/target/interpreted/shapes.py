"""Operations that rearrange blocks, for several programs of a grid at once.

Every array of the interpreter begins with an axis of programs: of length 1 for what all programs share, and of the
number of programs that run together otherwise. A scalar of Triton is an array with that axis alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from fuzzcompile.compiler.target.interpreted.numbers import Array

_Handle = interpreter.TensorHandle


class Diverged(Exception):
    """Programs that run together take different ways, or do what only one program at a time can do here."""


def together(*arrays: Array) -> list[Array]:
    """The arrays with the same axis of programs, the longest of them, and otherwise as they are."""
    programs = max(array.shape[0] for array in arrays)
    return [np.broadcast_to(array, (programs, *array.shape[1:])) for array in arrays]


def aligned(arrays: Sequence[Array]) -> list[Array]:
    """Arrays of one shape: scalars and lower ranks are broadcast behind the axis of programs."""
    rank = max(array.ndim for array in arrays)
    padded = [array.reshape(array.shape[0], *(1,) * (rank - array.ndim), *array.shape[1:]) for array in arrays]
    return list(np.broadcast_arrays(*padded))


def only(value: Any) -> Any:
    """The value of a scalar on which all programs that run together agree.

    Raises:
        Diverged: they do not.
    """
    data = value.handle.data
    if data.size > 1 and not (data == data.flat[0]).all():
        raise Diverged("programs disagree on a value that decides what comes next")
    return data.flat[0]


def truth(value: Any) -> bool:
    """Return a tensor's truth value in Python: True for a block, as Triton's own code tests that there is one."""
    return value.type.is_block() or bool(only(value))


def transposed(value: Any) -> Any:
    """``tensor.T``: the last two dimensions exchanged."""
    shape = list(value.type.shape)
    shape[-1], shape[-2] = shape[-2], shape[-1]
    handle = _Handle(np.swapaxes(value.handle.data, -1, -2), value.handle.dtype)
    return tl.tensor(handle, tl.block_type(value.dtype, shape))


def _program_id(builder: Any, axis: int) -> Any:
    return _Handle(builder.programs[:, axis], tl.int32)


def _range(builder: Any, kind: Any, start: int, stop: int) -> Any:
    return _Handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32)


def _expanded(builder: Any, operand: Any, axis: int) -> Any:
    return _Handle(np.expand_dims(operand.data, axis + 1 if axis >= 0 else axis), operand.dtype.scalar)


def _broadcast(builder: Any, operand: Any, shape: Sequence[int]) -> Any:
    return _Handle(np.broadcast_to(operand.data, (operand.data.shape[0], *shape)), operand.dtype.scalar)


def _splat(builder: Any, kind: Any, operand: Any) -> Any:
    shape = tuple(kind.shape)
    scalar = operand.data.reshape(operand.data.shape[0], *(1,) * len(shape))
    return _Handle(np.broadcast_to(scalar, (len(scalar), *shape)), operand.dtype.scalar)


def _unsplat(builder: Any, operand: Any) -> Any:
    return _Handle(operand.data.reshape(operand.data.shape[0]), operand.dtype.scalar)


def _reshaped(builder: Any, operand: Any, shape: Sequence[int], *rest: object) -> Any:
    return _Handle(operand.data.reshape(operand.data.shape[0], *shape), operand.dtype.scalar)


def _permuted(builder: Any, operand: Any, order: Sequence[int]) -> Any:
    return _Handle(np.transpose(operand.data, (0, *(axis + 1 for axis in order))), operand.dtype.scalar)


def _concatenated(builder: Any, left: Any, right: Any) -> Any:
    return _Handle(np.concatenate(together(left.data, right.data), axis=1), left.dtype.scalar)


def _joined(builder: Any, left: Any, right: Any) -> Any:
    return _Handle(np.stack(together(left.data, right.data), axis=-1), left.dtype.scalar)


def _gathered(builder: Any, source: Any, indices: Any, axis: int) -> Any:
    data, places = together(source.data, indices.data)
    return _Handle(np.take_along_axis(data, places, axis + 1 if axis >= 0 else axis), source.dtype.scalar)


def _histogram(builder: Any, data: Any, bins: int, mask: Any) -> Any:
    values, counted = aligned([data.data, np.ones((1, 1), dtype=bool) if mask is None else mask.data])
    inside = counted & (values >= 0) & (values < bins)
    counts = [np.bincount(row[chosen], minlength=bins) for row, chosen in zip(values, inside, strict=True)]
    return _Handle(np.stack(counts).astype(np.int32), tl.int32)


def _unknown(builder: Any, *operands: Any, **options: Any) -> Any:
    raise NotImplementedError("gathers and scatters through a descriptor")


def behind_programs(materialize: Callable[..., Any]) -> Callable[..., Any]:
    """``materialize_pointers`` of block pointers and descriptors, which know one program only."""

    def pointers(handle: Any, *given: Any) -> Any:
        offsets = handle.offsets if hasattr(handle, "offsets") else given[0]
        if any(part.data.size > 1 for part in (handle.base, *offsets, *handle.shape, *handle.strides)):
            raise Diverged("a block pointer or descriptor")
        addresses, mask = materialize(handle, *given)
        data = mask.data if isinstance(mask, _Handle) else mask
        return _Handle(addresses.data[None], addresses.dtype), _Handle(np.asarray(data)[None], tl.int1)

    return pointers


OPERATIONS: dict[str, Callable[..., Any]] = {
    "create_get_program_id": _program_id,
    "create_make_range": _range,
    "create_expand_dims": _expanded,
    "create_broadcast": _broadcast,
    "create_splat": _splat,
    "create_unsplat": _unsplat,
    "create_reshape": _reshaped,
    "create_trans": _permuted,
    "create_cat": _concatenated,
    "create_join": _joined,
    "create_gather": _gathered,
    "create_histogram": _histogram,
    "create_descriptor_gather": _unknown,
    "create_descriptor_scatter": _unknown,
}
