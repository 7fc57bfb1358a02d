"""Which tensors share memory: exactly, element address by element address.

Two tensors alias if a write into one can change the other. Sharing a storage is not enough for that (the two halves
of a buffer, interleaved columns), and not needed either (memory shared with NumPy has storages of its own).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch

# Whether two strided arrays meet is an integer programme, exponential in the number of dimensions at worst.
_MAX_WORK: Any = 1_000_000  # candidates tried; the stubs of NumPy know of 0 and -1 only


class _Addresses:
    """The addresses of a tensor's elements in the form that NumPy reads; what is stored there is never touched."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
        }


def overlapping(first: Any, second: Any) -> bool:
    """Whether two tensors (or NumPy arrays) have an address in common at which both have an element."""
    one, other = _addresses(first), _addresses(second)
    return one is not None and other is not None and one[0] == other[0] and _meet(one[1], other[1])


def aliases(named: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """For every name the earlier names whose tensors it shares memory with.

    Candidates are found by sweeping over the address ranges, so that only pairs whose ranges intersect are looked
    at closely: linear in the number of tensors where nothing is shared.
    """
    names = list(named)
    ranges = []
    for position, name in enumerate(names):
        found = _addresses(named[name])
        if found is not None:
            device, array = found
            low, high = numpy.lib.array_utils.byte_bounds(array)
            ranges.append((device, low, high, position, array))
    ranges.sort(key=lambda entry: entry[:2])
    shared: dict[int, list[int]] = {}
    active: list[tuple[str, int, int, int, numpy.ndarray[Any, Any]]] = []
    for entry in ranges:
        device, low, _, position, array = entry
        active = [other for other in active if other[0] == device and other[2] > low]
        for other in active:
            if _meet(array, other[4]):
                shared.setdefault(max(position, other[3]), []).append(min(position, other[3]))
        active.append(entry)
    return {names[position]: tuple(names[i] for i in sorted(others)) for position, others in shared.items()}


def _addresses(value: Any) -> tuple[str, numpy.ndarray[Any, Any]] | None:
    """Device and addresses of what can be written into; None where there is nothing."""
    if isinstance(value, numpy.ndarray):
        return ("cpu", value) if value.size else None
    if not isinstance(value, torch.Tensor):
        return None
    # Subclasses without memory of their own and outputs that a CUDA graph has taken back have no address.
    with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
        strided = _strided(value)
        if strided.numel() and strided.data_ptr():
            return str(strided.device), numpy.asarray(_Addresses(strided))
    return None


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The strided tensor that holds the values of a sparse or jagged one."""
    if tensor.layout == torch.strided and not tensor.is_nested:
        return tensor
    values: torch.Tensor = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    return values


def _meet(one: numpy.ndarray[Any, Any], other: numpy.ndarray[Any, Any]) -> bool:
    try:
        return numpy.shares_memory(one, other, max_work=_MAX_WORK)
    except numpy.exceptions.TooHardError:
        return True  # the ranges intersect, and the layouts are too wild to tell
