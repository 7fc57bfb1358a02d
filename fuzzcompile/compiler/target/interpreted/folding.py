"""Reductions and scans by any combine function, on whole arrays.

The interpreter applies a combine function that it does not know element by element, which takes a minute for a block of
a few thousand. A combine function is elementwise and associative, so that half of a block is combined with the other
half at once, neighbours first, which keeps their order as a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import triton.language as tl

from fuzzcompile.compiler.target.interpreted.numbers import Array, numbers, pack, tensor

Blocks = tuple[Array, ...]


def reduce(given: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **options: object) -> Any:
    """``tl.reduce``: one block, or a tuple of them, combined along ``axis``, or over all elements."""
    blocks, dtypes = _blocks(given)
    axis, keep = _plain(axis), bool(_plain(keep_dims))
    shape = blocks[0].shape
    if axis is None:
        blocks = tuple(block.reshape(shape[0], -1) for block in blocks)
    along = 1 if axis is None else _behind_programs(axis, len(shape))
    total = tuple(block.take(0, along) for block in _halved(blocks, dtypes, along, combine_fn))
    if keep:
        rest = (1,) * (len(shape) - 1) if axis is None else (*shape[1:along], 1, *shape[along + 1 :])
        total = tuple(block.reshape(shape[0], *rest) for block in total)
    return _as_given(given, total, dtypes)


def scan(given: Any, axis: Any, combine_fn: Any, reverse: Any = False, **options: object) -> Any:
    """``tl.associative_scan``: element ``i`` along ``axis`` is the combination of the elements up to it."""
    blocks, dtypes = _blocks(given)
    along = _behind_programs(_plain(axis), blocks[0].ndim)
    blocks = tuple(np.moveaxis(block, along, -1) for block in blocks)
    if _plain(reverse):
        blocks = tuple(block[..., ::-1] for block in blocks)
    for distance in _doubling(blocks[0].shape[-1]):
        # Shapes in Triton are powers of two: the first elements have no partner and are put back afterwards.
        earlier = tuple(np.roll(block, distance, axis=-1) for block in blocks)
        combined = _combined(combine_fn, earlier, blocks, dtypes)
        blocks = tuple(
            np.concatenate([block[..., :distance], part[..., distance:]], axis=-1)
            for block, part in zip(blocks, combined, strict=True)
        )
    if _plain(reverse):
        blocks = tuple(block[..., ::-1] for block in blocks)
    return _as_given(given, tuple(np.ascontiguousarray(np.moveaxis(block, -1, along)) for block in blocks), dtypes)


def _behind_programs(axis: int, rank: int) -> int:
    """The axis of an array of ``rank`` for the dimension of a block; the first axis is that of programs."""
    return axis + 1 if axis >= 0 else axis + rank


def _doubling(length: int) -> Iterator[int]:
    distance = 1
    while distance < length:
        yield distance
        distance *= 2


def _halved(blocks: Blocks, dtypes: Sequence[Any], axis: int, combine_fn: Any) -> Blocks:
    """The blocks with one element along ``axis`` of their arrays, whose length is a power of two in Triton."""
    if combine_fn is tl.standard._sum_combine:
        whole = numbers(blocks[0], dtypes[0])
        return (pack(whole.sum(axis=axis, keepdims=True, dtype=whole.dtype), dtypes[0]),)
    while blocks[0].shape[axis] > 1:
        even, odd = _cut(blocks, axis, slice(0, None, 2)), _cut(blocks, axis, slice(1, None, 2))
        blocks = _combined(combine_fn, even, odd, dtypes)
    return blocks


def _cut(blocks: Blocks, axis: int, part: slice) -> Blocks:
    return tuple(block[(slice(None),) * axis + (part,)] for block in blocks)


def _combined(combine_fn: Callable[..., Any], left: Blocks, right: Blocks, dtypes: Sequence[Any]) -> Blocks:
    shape = left[0].shape
    operands = [tensor(block, dtype) for side in (left, right) for block, dtype in zip(side, dtypes, strict=True)]
    result = combine_fn(*operands)
    results = tuple(result) if isinstance(result, (tuple, tl.tuple)) else (result,)
    return tuple(
        np.broadcast_to(pack(numbers(each.handle.data, each.dtype), dtype), shape)
        for each, dtype in zip(results, dtypes, strict=True)
    )


def _blocks(given: Any) -> tuple[Blocks, tuple[Any, ...]]:
    tensors = tuple(given) if isinstance(given, (tuple, tl.tuple)) else (given,)
    shape = np.broadcast_shapes(*(each.handle.data.shape for each in tensors))
    return tuple(np.broadcast_to(each.handle.data, shape) for each in tensors), tuple(each.dtype for each in tensors)


def _as_given(given: Any, blocks: Blocks, dtypes: Sequence[Any]) -> Any:
    results = tuple(tensor(np.asarray(block), dtype) for block, dtype in zip(blocks, dtypes, strict=True))
    return results if isinstance(given, (tuple, tl.tuple)) else results[0]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value
