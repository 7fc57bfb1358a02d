"""Parameters in float64 that take the memory of their own dtype: each operator converts what it reads.

To a program, a streamed tensor is a float64 tensor in its dtype, shape and strides, and its views are streamed too.
Only an operator that reads values has them converted, and they are forgotten again: a float64 run of a large model
holds a few layers in float64, and not all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.run.tensors import LOW_FLOATS, doubled

# Smaller tensors are converted once and for all.
LEAST_BYTES = 2**20
# Float64 values kept for the next operator that reads them: the weights of a loop, and those that layers share.
KEPT_BYTES = 256 * 2**20


class Stream:
    """Makes streamed tensors, and keeps the float64 values that were read last."""

    def __init__(self) -> None:
        self._values: dict[int, _Values] = {}
        self._recent: OrderedDict[int, torch.Tensor] = OrderedDict()

    def of(self, native: torch.Tensor) -> torch.Tensor:
        """The float64 form of a tensor that :func:`is_large`, whose memory it shares."""
        storage = native.untyped_storage()
        if storage.data_ptr() not in self._values:
            count = storage.nbytes() // native.element_size()
            flat = torch.empty(0, dtype=native.dtype, device=native.device).set_(storage, 0, (count,), (1,))
            self._values[storage.data_ptr()] = _Values(flat)
        return _Streamed(self, self._values[storage.data_ptr()], _geometry(native))

    def swap(self, parameter: torch.Tensor) -> bool:
        """Make ``parameter`` itself a streamed tensor, wherever it is referred to; False if that is not possible."""
        if not isinstance(parameter, nn.Parameter) or not is_large(parameter):
            return False
        made = nn.Parameter(self.of(parameter.data), requires_grad=parameter.requires_grad)
        try:
            torch.utils.swap_tensors(parameter, made)  # type: ignore[no-untyped-call]
        except RuntimeError:  # a weak reference, or something outside of Python, holds it
            return False
        return True

    def read(self, values: _Values, *, writes: bool) -> torch.Tensor:
        """The values in float64, as one row; from a write on, it takes the place of the native ones."""
        wide = self._wide(values) if values.written is None else values.written
        if writes:
            values.written = wide
        return wide

    def _wide(self, values: _Values) -> torch.Tensor:
        if id(values) in self._recent:
            self._recent.move_to_end(id(values))
            return self._recent[id(values)]
        with torch.inference_mode(False):  # a parameter is no inference tensor
            wide = values.native.to(doubled(values.native.dtype))
        self._recent[id(values)] = wide
        while len(self._recent) > 1 and sum(recent.nbytes for recent in self._recent.values()) > KEPT_BYTES:
            self._recent.popitem(last=False)
        return wide


def is_large(tensor: torch.Tensor) -> bool:
    """Whether streaming ``tensor`` saves memory: it is a whole storage of low-precision values, and not a small one."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.dtype not in LOW_FLOATS:
        return False
    if tensor.layout != torch.strided or tensor.is_nested or tensor.nbytes < LEAST_BYTES:
        return False
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def native(tensor: torch.Tensor) -> torch.Tensor:
    """A streamed tensor as a plain one: in its own dtype, or in float64 if it was written to. Others as they are."""
    if not isinstance(tensor, _Streamed):
        return tensor
    values = tensor._below
    return (values.native if values.written is None else values.written).as_strided(*tensor._geometry)


def is_streamed(value: object) -> TypeGuard[torch.Tensor]:
    """Whether ``value`` is a streamed tensor."""
    return isinstance(value, _Streamed)


def is_unwritten(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a streamed one that nothing has written to."""
    return isinstance(tensor, _Streamed) and tensor._below.written is None


class _Geometry(NamedTuple):
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _geometry(tensor: torch.Tensor) -> _Geometry:
    return _Geometry(tensor.size(), tensor.stride(), int(tensor.storage_offset()))


class _Values:
    """The values below a streamed tensor and its views, as one row: the native ones, or what a program wrote there."""

    def __init__(self, native: torch.Tensor) -> None:
        self.native = native
        self.written: torch.Tensor | None = None


class _Streamed(torch.Tensor):
    _stream: Stream
    _below: _Values
    _geometry: _Geometry
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[_Streamed], stream: Stream, values: _Values, geometry: _Geometry) -> _Streamed:
        row = values.native
        size, stride, offset = geometry
        with torch.inference_mode(False):
            made: _Streamed = torch.Tensor._make_wrapper_subclass(
                cls, size, strides=stride, storage_offset=offset, dtype=doubled(row.dtype), device=row.device
            )
        made._stream, made._below, made._geometry = stream, values, geometry
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if _is_view(func) and isinstance(args[0], cls):
            first, below = args[0], native(args[0])
            views = func(below, *args[1:], **(kwargs or {}))
            if all(_is_view_of(view, below) for view in pytree.tree_leaves(views)):
                return pytree.tree_map(lambda view: cls(first._stream, first._below, _geometry(view)), views)
        given: dict[int, torch.Tensor] = {}
        writes = func._schema.is_mutable if hasattr(func, "_schema") else True  # what runs functions may do anything

        def widened(leaf: object) -> object:
            if not isinstance(leaf, cls):
                return leaf
            row = leaf._stream.read(leaf._below, writes=writes)
            wide = row.as_strided(*leaf._geometry)
            given[id(wide)] = leaf
            return wide

        result = func(*pytree.tree_map(widened, args), **pytree.tree_map(widened, kwargs or {}))
        # What writes in place gives back what it was given.
        return pytree.tree_map_only(torch.Tensor, lambda out: given.get(id(out), out), result)


def _is_view_of(value: torch.Tensor, below: torch.Tensor) -> bool:
    """Whether ``value`` shows the same numbers: ``reshape`` copies what it cannot view."""
    return value.dtype == below.dtype and value.untyped_storage().data_ptr() == below.untyped_storage().data_ptr()


def _is_view(func: Any) -> bool:
    """Whether ``func`` may give views of its first argument and writes nothing."""
    if not hasattr(func, "_schema") or func._schema.is_mutable or not func._schema.returns:
        return False
    return all(returned.alias_info is not None for returned in func._schema.returns)
