"""Loads, stores and atomics of the interpreter, kept inside the buffers that a kernel was given.

The interpreter reads and writes through raw addresses of this process. An access that no buffer of the launch holds is
left out: a load gives zeros, a store does nothing, and the launch notes it. On a GPU it would touch memory of others,
or fault.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from fuzzcompile.compiler.target.interpreted.numbers import Array, numbers, pack, packed
from fuzzcompile.compiler.target.interpreted.shapes import Diverged, together

_native = interpreter._interpreter
_Handle = interpreter.TensorHandle


class Memory:
    """The memory that one launch may touch: the storages of its tensors.

    Attributes:
        notes: sentences about accesses outside of it, once each.
        widest: elements of the largest access of one program so far.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        self._starts = sorted(start for start, size in storages.items() if size)
        self._ends = [start + storages[start] for start in self._starts]
        self.notes: dict[str, None] = {}
        self.widest = 1

    def inside(self, addresses: Array, active: Array, size: int, kind: str) -> Array:
        """The active lanes whose element of ``size`` bytes lies in one of the storages.

        Args:
            addresses: uint64, of any shape.
            active: bool, of that shape.
            size: bytes of an element.
            kind: what the kernel does there, for the note: ``load``, ``store`` or ``atomic``.
        """
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
        """Return whether one storage holds all bytes from ``low`` to before ``high``."""
        place = bisect.bisect_right(self._starts, low) - 1
        return place >= 0 and high <= self._ends[place]


def _lanes(builder: Any, kind: str, pointers: Any, mask: Any, *given: Any) -> tuple[Array, ...]:
    """Addresses, lanes that may be touched, and the data of the other handles, all for the same programs."""
    held = interpreter._get_np_dtype(pointers.get_element_ty())
    addresses, active, *values = together(pointers.data, mask.data, *(value.data for value in given))
    builder.memory.widest = max(builder.memory.widest, addresses[0].size)
    active = builder.memory.inside(addresses, active, held.itemsize, kind)
    return tuple(np.require(array, requirements=("C", "W")) for array in (addresses, active, *values))


def load(builder: Any, pointers: Any, mask: Any, other: Any, *rest: object, **policies: object) -> Any:
    """A masked load; lanes that are masked give ``other``, or 0 without it."""
    element = pointers.get_element_ty()
    held = interpreter._get_np_dtype(element)
    default = _Handle(np.zeros((1, *pointers.data.shape[1:]), dtype=held), element) if other is None else other
    addresses, active, missing = _lanes(builder, "load", pointers, mask, default)
    return _Handle(_native.load(addresses, active, missing, held), element)


def store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: object, **policies: object) -> Any:
    """A masked store."""
    held = interpreter._get_np_dtype(pointers.get_element_ty())
    addresses, active, data = _lanes(builder, "store", pointers, mask, value)
    return _native.store(addresses, data if data.dtype == held else data.astype(held), active)


def atomic(builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, semantics: Any, scope: Any) -> Any:
    """An atomic update; gives the values before."""
    element = pointers.get_element_ty()
    held = interpreter._get_np_dtype(element)
    every = _Handle(builder.programs[:, 0].reshape(-1, *(1,) * (pointers.data.ndim - 1)), tl.int32)
    addresses, active, data, _ = _lanes(builder, "atomic", pointers, mask, value, every)
    if operation == interpreter._ir.ATOMIC_OP.FADD and (packed(element) is not None or held == np.float16):
        return _Handle(_add_one_by_one(addresses, active, data, element, held), element)
    native = builder.ir_rmw_op_to_interpreter_rmw_op[operation]
    order = builder.ir_sem_to_interpreter_sem[semantics]
    return _Handle(_native.atomic_rmw(native, addresses, data, active, order), value.dtype.scalar)


def _add_one_by_one(addresses: Array, active: Array, data: Array, element: Any, held: Any) -> Array:
    """Additions to elements of half precision, each of which rounds; the library has none."""
    before = np.zeros(addresses.shape, dtype=held)
    always, zero = np.ones(1, dtype=bool), np.zeros(1, dtype=held)
    for lane in np.argwhere(active):
        index = tuple(lane)
        address = addresses[index].reshape(1)
        present = _native.load(address, always, zero, held)
        total = numbers(present, element).astype(np.float32) + numbers(data[index].reshape(1), element)
        _native.store(address, pack(total, element), always)
        before[index] = present[0]
    return before


def compare_and_swap(builder: Any, pointers: Any, expected: Any, value: Any, semantics: Any, scope: Any) -> Any:
    """An atomic exchange where the present value is the expected one; gives the values before."""
    if len(builder.programs) > 1:
        raise Diverged("a compare-and-swap")
    mask = _Handle(np.ones(pointers.data.shape, dtype=bool), tl.int1)
    addresses, active = _lanes(builder, "atomic", pointers, mask)
    if not active.all():
        raise NotImplementedError("a compare-and-swap outside every buffer of the kernel")
    order = builder.ir_sem_to_interpreter_sem[semantics]
    return _Handle(_native.atomic_cas(addresses, expected.data, value.data, order), expected.dtype.scalar)
