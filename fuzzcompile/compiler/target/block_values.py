"""Blocks of the interpreter, and its loads, stores and atomics, kept inside the buffers that a kernel was given.

The interpreter accesses raw addresses of this process. What no buffer of the launch holds is left out: a load gives
zeros, a store does nothing, and the launch notes it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

# Values as Triton's interpreter holds them, and the casts and arithmetic that it gets wrong.

Array = np.ndarray[Any, np.dtype[Any]]
_Handle = interpreter.TensorHandle
_native_memory = interpreter._interpreter
_plain = tl.core._unwrap_if_constexpr

# Dtypes of Triton that NumPy lacks.
_PACKED: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
}


def as_torch_tensor(data: Array) -> torch.Tensor:
    """The array as a tensor of the same shape, without a copy if it is contiguous and writable."""
    whole = np.ascontiguousarray(data).reshape(data.shape)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())


def to_numbers(data: Array, dtype: Any) -> Array:
    """The numbers that ``data`` stands for in the Triton dtype: float32 for bfloat16 and float8."""
    kind = _PACKED.get(dtype.scalar.name)
    if kind is None:
        return data
    signed = np.int16 if data.dtype.itemsize == 2 else np.int8
    widened: Array = as_torch_tensor(data.view(signed)).view(kind).float().numpy()
    return widened


def pack_numbers(data: Array, dtype: Any) -> Array:
    """Numbers as the interpreter holds them in the Triton dtype, rounded to nearest even."""
    kind, held = _PACKED.get(dtype.scalar.name), interpreter._get_np_dtype(dtype.scalar)
    if kind is None:
        return data if data.dtype == held else data.astype(held)
    signed = torch.int16 if held.itemsize == 2 else torch.int8
    patterns: Array = as_torch_tensor(data).to(kind).view(signed).numpy().view(held)
    return patterns


def make_handle(data: Array, dtype: Any) -> Any:
    """A handle of the interpreter on numbers, packed in the Triton dtype."""
    return _Handle(pack_numbers(data, dtype), dtype.scalar)


def make_tensor(data: Array, dtype: Any) -> Any:
    """A Triton tensor of numbers, whose first axis is that of programs; a scalar if it has no other."""
    return _wrap_packed(pack_numbers(data, dtype), dtype)


def _wrap_packed(data: Array, dtype: Any) -> Any:
    scalar, shape = dtype.scalar, list(data.shape[1:])
    return tl.tensor(_Handle(data, scalar), tl.block_type(scalar, shape) if shape else scalar)


def compute_packed(operation: Callable[..., Array], result: Any, *operands: Any) -> Any:
    """``operation`` on the numbers of handles, rounded to the Triton dtype ``result`` unless it is boolean."""
    data = operation(*(to_numbers(operand.data, operand.dtype) for operand in operands))
    return _Handle(data, tl.int1) if data.dtype == np.bool_ else make_handle(data, result)


# Operations that rearrange blocks, for several programs of a grid at once.


class Diverged(Exception):
    """Programs that run together take different ways, or do what only one program at a time can do here."""


def align_programs(*arrays: Array) -> list[Array]:
    """The arrays, each with as many programs as the longest of them."""
    programs = max(array.shape[0] for array in arrays)
    return [np.broadcast_to(array, (programs, *array.shape[1:])) for array in arrays]


def align_shapes(arrays: Sequence[Array]) -> list[Array]:
    """Arrays of one shape: scalars and lower ranks are broadcast behind the axis of programs."""
    rank = max(array.ndim for array in arrays)
    padded = [array.reshape(array.shape[0], *(1,) * (rank - array.ndim), *array.shape[1:]) for array in arrays]
    return list(np.broadcast_arrays(*padded))


def require_uniform(value: Any) -> Any:
    """The value of a scalar on which all programs that run together agree; Diverged if they do not."""
    data = value.handle.data
    if data.size > 1 and not (data == data.flat[0]).all():
        raise Diverged("programs disagree on a value that decides what comes next")
    return data.flat[0]


def test_truth(value: Any) -> bool:
    """Return a tensor's truth value in Python: True for a block, as Triton's own code tests that there is one."""
    return value.type.is_block() or bool(require_uniform(value))


def transpose(value: Any) -> Any:
    """``tensor.T``: the last two dimensions exchanged."""
    shape = list(value.type.shape)
    shape[-1], shape[-2] = shape[-2], shape[-1]
    handle = _Handle(np.swapaxes(value.handle.data, -1, -2), value.handle.dtype)
    return tl.tensor(handle, tl.block_type(value.dtype, shape))


def _on_data(rearrange: Callable[..., Array]) -> Callable[..., Any]:
    """The operation of one block that rearranges its array, whose first axis is that of programs."""
    return lambda builder, operand, *rest: _Handle(rearrange(operand.data, *rest), operand.dtype.scalar)


def _splat_scalar(builder: Any, kind: Any, operand: Any) -> Any:
    shape = tuple(kind.shape)
    scalar = operand.data.reshape(operand.data.shape[0], *(1,) * len(shape))
    return _Handle(np.broadcast_to(scalar, (len(scalar), *shape)), operand.dtype.scalar)


def _on_both(unite: Callable[..., Array], axis: int) -> Callable[..., Any]:
    return lambda builder, left, right: _Handle(
        unite(align_programs(left.data, right.data), axis=axis), left.dtype.scalar
    )


def _gather(builder: Any, source: Any, indices: Any, axis: int) -> Any:
    data, places = align_programs(source.data, indices.data)
    return _Handle(np.take_along_axis(data, places, _find_array_axis(axis, data.ndim)), source.dtype.scalar)


def _count_histogram(builder: Any, data: Any, bins: int, mask: Any) -> Any:
    values, counted = align_shapes([data.data, np.ones((1, 1), dtype=bool) if mask is None else mask.data])
    inside = counted & (values >= 0) & (values < bins)
    counts = [np.bincount(row[chosen], minlength=bins) for row, chosen in zip(values, inside, strict=True)]
    return _Handle(np.stack(counts).astype(np.int32), tl.int32)


def _refuse_unknown(builder: Any, *operands: Any, **options: Any) -> Any:
    raise NotImplementedError("gathers and scatters through a descriptor")


def wrap_materialize(materialize: Callable[..., Any]) -> Callable[..., Any]:
    """``materialize_pointers`` of block pointers and descriptors, which know one program only."""

    def pointers(handle: Any, *given: Any) -> Any:
        offsets = handle.offsets if hasattr(handle, "offsets") else given[0]
        if any(part.data.size > 1 for part in (handle.base, *offsets, *handle.shape, *handle.strides)):
            raise Diverged("a block pointer or descriptor")
        addresses, mask = materialize(handle, *given)
        data = mask.data if isinstance(mask, _Handle) else mask
        return _Handle(addresses.data[None], addresses.dtype), _Handle(np.asarray(data)[None], tl.int1)

    return pointers


# Memory.


class LaunchMemory:
    """The memory that one launch may touch: the storages of its tensors."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        self._starts = sorted(start for start, size in storages.items() if size)
        self._ends = [start + storages[start] for start in self._starts]
        self.notes: dict[str, None] = {}
        self.widest = 1

    def find_inside(self, addresses: Array, active: Array, size: int, kind: str) -> Array:
        """The active lanes whose ``size`` bytes lie in a storage; the note on others names the ``kind`` (``load``)."""
        chosen = addresses if active.all() else addresses[active]
        if not chosen.size or self._holds(int(chosen.min()), int(chosen.max()) + size):
            return active
        valid = np.zeros(addresses.shape, dtype=bool)
        for start, end in zip(self._starts, self._ends, strict=True):
            valid |= (addresses >= np.uint64(start)) & (addresses <= np.uint64(max(end - size, 0)))
        valid &= active
        if stray := int(active.sum() - valid.sum()):
            self.notes.setdefault(f"{kind} outside every buffer of the kernel ({stray} lanes of one block)")
        return valid

    def _holds(self, low: int, high: int) -> bool:
        place = bisect.bisect_right(self._starts, low) - 1
        return place >= 0 and high <= self._ends[place]


def _find_lanes(builder: Any, kind: str, pointers: Any, mask: Any, *given: Any) -> tuple[Array, ...]:
    """Addresses, lanes that may be touched, and the data of the other handles, all for the same programs."""
    held = interpreter._get_np_dtype(pointers.get_element_ty())
    addresses, active, *values = align_programs(pointers.data, mask.data, *(value.data for value in given))
    builder.memory.widest = max(builder.memory.widest, addresses[0].size)
    active = builder.memory.find_inside(addresses, active, held.itemsize, kind)
    return tuple(np.require(array, requirements=("C", "W")) for array in (addresses, active, *values))


def _load_masked(builder: Any, pointers: Any, mask: Any, other: Any, *rest: object, **policies: object) -> Any:
    element = pointers.get_element_ty()
    held = interpreter._get_np_dtype(element)
    default = _Handle(np.zeros((1, *pointers.data.shape[1:]), dtype=held), element) if other is None else other
    addresses, active, missing = _find_lanes(builder, "load", pointers, mask, default)
    return _Handle(_native_memory.load(addresses, active, missing, held), element)


def _store_masked(builder: Any, pointers: Any, value: Any, mask: Any, *rest: object, **policies: object) -> Any:
    held = interpreter._get_np_dtype(pointers.get_element_ty())
    addresses, active, data = _find_lanes(builder, "store", pointers, mask, value)
    return _native_memory.store(addresses, data if data.dtype == held else data.astype(held), active)


def _update_atomically(
    builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, semantics: Any, scope: Any
) -> Any:
    element = pointers.get_element_ty()
    held = interpreter._get_np_dtype(element)
    every = _Handle(builder.programs[:, 0].reshape(-1, *(1,) * (pointers.data.ndim - 1)), tl.int32)
    addresses, active, data, _ = _find_lanes(builder, "atomic", pointers, mask, value, every)
    if operation == interpreter._ir.ATOMIC_OP.FADD and (element.scalar.name in _PACKED or held == np.float16):
        return _Handle(_add_one_by_one(addresses, active, data, element, held), element)
    native = builder.ir_rmw_op_to_interpreter_rmw_op[operation]
    order = builder.ir_sem_to_interpreter_sem[semantics]
    return _Handle(_native_memory.atomic_rmw(native, addresses, data, active, order), value.dtype.scalar)


def _add_one_by_one(addresses: Array, active: Array, data: Array, element: Any, held: Any) -> Array:
    """Additions to elements of half precision, each of which rounds; the library has none."""
    before = np.zeros(addresses.shape, dtype=held)
    always, zero = np.ones(1, dtype=bool), np.zeros(1, dtype=held)
    for lane in np.argwhere(active):
        index = tuple(lane)
        address = addresses[index].reshape(1)
        present = _native_memory.load(address, always, zero, held)
        total = to_numbers(present, element).astype(np.float32) + to_numbers(data[index].reshape(1), element)
        _native_memory.store(address, pack_numbers(total, element), always)
        before[index] = present[0]
    return before


def _compare_and_swap(builder: Any, pointers: Any, expected: Any, value: Any, semantics: Any, scope: Any) -> Any:
    if len(builder.programs) > 1:
        raise Diverged("a compare-and-swap")
    mask = _Handle(np.ones(pointers.data.shape, dtype=bool), tl.int1)
    addresses, active = _find_lanes(builder, "atomic", pointers, mask)
    if not active.all():
        raise NotImplementedError("a compare-and-swap outside every buffer of the kernel")
    order = builder.ir_sem_to_interpreter_sem[semantics]
    return _Handle(_native_memory.atomic_cas(addresses, expected.data, value.data, order), expected.dtype.scalar)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "create_get_program_id": lambda builder, axis: _Handle(builder.programs[:, axis], tl.int32),
    "create_make_range": lambda builder, kind, start, stop: _Handle(
        np.arange(start, stop, dtype=np.int32)[None], tl.int32
    ),
    "create_expand_dims": _on_data(lambda data, axis: np.expand_dims(data, axis + 1 if axis >= 0 else axis)),
    "create_broadcast": _on_data(lambda data, shape: np.broadcast_to(data, (len(data), *shape))),
    "create_splat": _splat_scalar,
    "create_unsplat": _on_data(lambda data: data.reshape(len(data))),
    "create_reshape": _on_data(lambda data, shape, *rest: data.reshape(len(data), *shape)),
    "create_trans": _on_data(lambda data, order: np.transpose(data, (0, *(axis + 1 for axis in order)))),
    "create_cat": _on_both(np.concatenate, 1),
    "create_join": _on_both(np.stack, -1),
    "create_gather": _gather,
    "create_histogram": _count_histogram,
    "create_descriptor_gather": _refuse_unknown,
    "create_descriptor_scatter": _refuse_unknown,
    "create_masked_load": _load_masked,
    "create_masked_store": _store_masked,
    "create_atomic_rmw": _update_atomically,
    "create_atomic_cas": _compare_and_swap,
}


# Reductions and scans by any combine function, on whole arrays.

FoldedBlocks = tuple[Array, ...]


def reduce_blocks(given: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **options: object) -> Any:
    """``tl.reduce``: one block, or a tuple of them, combined along ``axis``, or over all elements."""
    blocks, dtypes = _open_blocks(given)
    axis, keep = _plain(axis), bool(_plain(keep_dims))
    shape = blocks[0].shape
    if axis is None:
        blocks = tuple(block.reshape(shape[0], -1) for block in blocks)
    along = 1 if axis is None else _find_array_axis(axis, len(shape))
    total = tuple(block.take(0, along) for block in _fold_halves(blocks, dtypes, along, combine_fn))
    if keep:
        rest = (1,) * (len(shape) - 1) if axis is None else (*shape[1:along], 1, *shape[along + 1 :])
        total = tuple(block.reshape(shape[0], *rest) for block in total)
    return _return_as_given(given, total, dtypes)


def scan_blocks(given: Any, axis: Any, combine_fn: Any, reverse: Any = False, **options: object) -> Any:
    """``tl.associative_scan``: element ``i`` along ``axis`` is the combination of the elements up to it."""
    blocks, dtypes = _open_blocks(given)
    along = _find_array_axis(_plain(axis), blocks[0].ndim)
    order = slice(None, None, -1 if _plain(reverse) else 1)
    blocks = tuple(np.moveaxis(block, along, -1)[..., order] for block in blocks)
    distance = 1
    while distance < blocks[0].shape[-1]:
        # Shapes in Triton are powers of two: the first elements have no partner and are put back afterwards.
        earlier = tuple(np.roll(block, distance, axis=-1) for block in blocks)
        combined = _combine_blocks(combine_fn, earlier, blocks, dtypes)
        blocks = tuple(
            np.concatenate([block[..., :distance], part[..., distance:]], axis=-1)
            for block, part in zip(blocks, combined, strict=True)
        )
        distance *= 2
    blocks = tuple(np.ascontiguousarray(np.moveaxis(block[..., order], -1, along)) for block in blocks)
    return _return_as_given(given, blocks, dtypes)


def _find_array_axis(axis: int, rank: int) -> int:
    """The axis of an array of ``rank`` for the dimension of a block; the first axis is that of programs."""
    return axis + 1 if axis >= 0 else axis + rank


def _fold_halves(blocks: FoldedBlocks, dtypes: Sequence[Any], axis: int, combine_fn: Any) -> FoldedBlocks:
    """The blocks with one element along ``axis`` of their arrays, whose length is a power of two in Triton."""
    if combine_fn is tl.standard._sum_combine:
        whole = to_numbers(blocks[0], dtypes[0])
        return (pack_numbers(whole.sum(axis=axis, keepdims=True, dtype=whole.dtype), dtypes[0]),)
    before = (slice(None),) * axis
    while blocks[0].shape[axis] > 1:
        even, odd = (tuple(block[(*before, slice(start, None, 2))] for block in blocks) for start in (0, 1))
        blocks = _combine_blocks(combine_fn, even, odd, dtypes)
    return blocks


def _combine_blocks(
    combine_fn: Callable[..., Any], left: FoldedBlocks, right: FoldedBlocks, dtypes: Sequence[Any]
) -> FoldedBlocks:
    shape = left[0].shape
    operands = [_wrap_packed(block, dtype) for side in (left, right) for block, dtype in zip(side, dtypes, strict=True)]
    result = combine_fn(*operands)
    results = tuple(result) if isinstance(result, (tuple, tl.tuple)) else (result,)
    return tuple(
        np.broadcast_to(pack_numbers(to_numbers(each.handle.data, each.dtype), dtype), shape)
        for each, dtype in zip(results, dtypes, strict=True)
    )


def _open_blocks(given: Any) -> tuple[FoldedBlocks, tuple[Any, ...]]:
    tensors = tuple(given) if isinstance(given, (tuple, tl.tuple)) else (given,)
    shape = np.broadcast_shapes(*(each.handle.data.shape for each in tensors))
    return tuple(np.broadcast_to(each.handle.data, shape) for each in tensors), tuple(each.dtype for each in tensors)


def _return_as_given(given: Any, blocks: FoldedBlocks, dtypes: Sequence[Any]) -> Any:
    results = tuple(_wrap_packed(np.asarray(block), dtype) for block, dtype in zip(blocks, dtypes, strict=True))
    return results if isinstance(given, (tuple, tl.tuple)) else results[0]
