"""Which tensors share memory: exactly, element address by element address.

Two tensors alias if a write into one can change the other. Sharing a storage is not enough for that (the two halves
of a buffer, interleaved columns), and not needed either (memory shared with NumPy has storages of its own).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Candidates tried before two strided arrays count as overlapping: whether they overlap is an integer programme,
# exponential in the number of dimensions at worst.
_MAX_WORK: Any = 1_000_000  # NumPy's stubs admit 0 and -1 only


class _Addresses:
    """The addresses of a tensor's elements in the form that NumPy reads; the elements are never read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
        }


class _Range(NamedTuple):
    """Where a value lies in memory: its first byte and the one after its last; ``position`` is its rank by name."""

    device: str
    low: int
    high: int
    position: int
    array: NDArray[numpy.generic]


def aliases(named: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """For every name the earlier names whose tensors it shares memory with.

    Candidates are found by sweeping over the address ranges, so that only pairs whose ranges intersect are compared
    element by element: linear in the number of tensors where nothing is shared.
    """
    names = list(named)
    ranges = (_range(position, named[name]) for position, name in enumerate(names))
    shared: dict[int, list[int]] = {}
    active: list[_Range] = []
    for current in sorted((each for each in ranges if each is not None), key=lambda each: each[:2]):
        active = [earlier for earlier in active if earlier.device == current.device and earlier.high > current.low]
        for earlier in active:
            if _overlap(current.array, earlier.array):
                first, second = sorted((current.position, earlier.position))
                shared.setdefault(second, []).append(first)
        active.append(current)
    return {names[position]: tuple(names[i] for i in sorted(firsts)) for position, firsts in shared.items()}


def _range(position: int, value: object) -> _Range | None:
    """Where a tensor or array lies in memory; None if there is no memory to write to."""
    addressed = _addresses(value)
    if addressed is None:
        return None
    device, array = addressed
    return _Range(device, *numpy.lib.array_utils.byte_bounds(array), position, array)


def _addresses(value: object) -> tuple[str, NDArray[numpy.generic]] | None:
    """Device and addresses of a value's elements; None if it has none that can be written to."""
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


def _overlap(first: NDArray[numpy.generic], second: NDArray[numpy.generic]) -> bool:
    """Whether the arrays have an address in common at which both have an element."""
    try:
        return numpy.shares_memory(first, second, max_work=_MAX_WORK)
    except numpy.exceptions.TooHardError:
        return True  # the ranges intersect, and the layouts are too irregular to decide
