"""Copies of tensors that keep what a compiler can see: strides, offsets, overlap, shared storage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.run.trees import named_leaves, tree_map

T = TypeVar("T")

_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, int, float, bool, str, type(None)))
LOW_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# The last copy of each storage, by address, dtype and device, and by whether it is an inference tensor.
KnownCopies = dict[tuple[int, torch.dtype, torch.device, bool], torch.Tensor]
_LOW_COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def with_memory(value: object) -> object:
    """A tensor of zeros in place of a tensor without memory, which autograd makes (the gradient of ``sgn``).

    A dispatch mode receives such tensors below the layer that handles them: kernels would read address 0.
    """
    is_zero = getattr(torch, "_is_zerotensor", None)
    if is_zero is None or not isinstance(value, torch.Tensor) or not is_zero(value):
        return value
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device)


def mapped(function: Callable[[Any], object], tree: Any) -> Any:
    """``torch.utils._pytree.tree_map``, several times as fast on what a dispatch mode gets: it runs for every operator.

    Args:
        function: applied to every leaf.
        tree: arguments or results of an operator, in tuples, lists and dictionaries.
    """
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([mapped(function, value) for value in tree])
    if kind is dict:
        return {key: mapped(function, value) for key, value in tree.items()}
    if kind in _LEAVES:
        return function(tree)
    return pytree.tree_map(function, tree)


def without_values(*values: object) -> bool:
    """Whether some tensor among ``values`` (trees) is a meta tensor: autograd then asks an operator for a shape."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in pytree.tree_leaves(values))


class StorageCopier:
    """Copies tensors storage by storage, so that views of one buffer stay views of one buffer.

    With ``double=True`` every floating storage is converted to float64 (complex to complex128);
    integer and boolean storages are copied as they are. With ``device`` the copies live there.

    ``known`` is shared by several copiers, none of them with ``double`` or ``device``: a storage whose bits have not
    changed since it was last copied is not copied again. All copiers then share the copy, which must not be written
    to. Bits are compared because compiled code writes without counting versions.
    """

    def __init__(
        self, *, double: bool = False, device: torch.device | None = None, known: KnownCopies | None = None
    ) -> None:
        self._double = double
        self._device = device
        self._known = known
        self._bases: dict[tuple[int, torch.dtype, torch.device], torch.Tensor] = {}
        self._whole_tensors: dict[int, torch.Tensor] = {}
        self._keep: list[torch.Tensor] = []  # the address of a freed storage may be given to a new one

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of ``tensor``: same shape, stride and offset; detached leaf, same requires_grad."""
        if tensor.layout != torch.strided or tensor.is_quantized:
            return self._whole(tensor.detach()).requires_grad_(tensor.requires_grad)
        source = tensor.detach().resolve_conj().resolve_neg()
        self._keep += [tensor, source]
        shape = source.size(), source.stride(), source.storage_offset()
        viewed = _viewed(tensor)
        if viewed is not None:
            # To a compiler, a view of a tensor is not the same as one of two views of a third tensor.
            return self(viewed).as_strided(*shape)
        if id(tensor) not in self._whole_tensors:
            # Detached: not a view but a leaf, since gradients are compared where the program asked for them.
            self._whole_tensors[id(tensor)] = self._base(source).as_strided(*shape).detach()
        return self._whole_tensors[id(tensor)].requires_grad_(tensor.requires_grad)

    def _base(self, source: torch.Tensor) -> torch.Tensor:
        storage = source.untyped_storage()
        key = (storage.data_ptr() or id(storage), source.dtype, source.device)
        if key not in self._bases:
            count = storage.nbytes() // source.element_size()
            flat = torch.empty(0, dtype=source.dtype, device=source.device).set_(storage, 0, (count,), (1,))
            self._bases[key] = self._copied(flat)
        return self._bases[key]

    def _copied(self, flat: torch.Tensor) -> torch.Tensor:
        if self._known is None or not flat.data_ptr():
            return self._whole(flat)
        key = (flat.data_ptr(), flat.dtype, flat.device, torch.is_inference_mode_enabled())
        before = self._known.get(key)
        if before is None or not _same_bits(before, flat):
            before = self._known[key] = self._whole(flat)
        return before

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_quantized:
            return tensor.clone() if self._device in (None, tensor.device) else tensor.to(self._device)
        dtype = doubled(tensor.dtype) if self._double else tensor.dtype
        return tensor.to(self._device or tensor.device, dtype, copy=True)


def _viewed(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that ``tensor`` is a plain view of, outside of autograd."""
    base = tensor._base
    if base is None or base.dtype != tensor.dtype or base.layout != torch.strided:
        return None
    differentiable = tensor.requires_grad or base.requires_grad
    return None if differentiable or tensor.is_conj() or tensor.is_neg() or base.is_conj() or base.is_neg() else base


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two rows of elements of one dtype hold the same bits (NaN like any other)."""
    if first.numel() != second.numel():
        return False
    unit = torch.int64 if first.numel() * first.element_size() % 8 == 0 else torch.uint8
    return torch.equal(first.view(unit), second.view(unit))


def doubled(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are kept for a float64 run."""
    return torch.float64 if dtype.is_floating_point else _LOW_COMPLEX.get(dtype, dtype)


def copy_tree(
    tree: T, *, double: bool = False, device: torch.device | None = None, known: KnownCopies | None = None
) -> T:
    """Copy every tensor of a tree through one :class:`StorageCopier`; other leaves stay as they are."""
    return map_tensors(StorageCopier(double=double, device=device, known=known), tree)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: T) -> T:
    """Apply ``function`` to each tensor of a tree, including those in dataclasses and subclasses of dict.

    A tensor that occurs twice is mapped once: a compiler sees whether two inputs are the same tensor.
    """
    return tree_map(function, tree)


def same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of one dtype have the same shape and values; NaNs are alike."""
    return first.shape == second.shape and torch.equal(first.nan_to_num(), second.nan_to_num())


def share_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two strided tensors that have elements lie in one storage."""
    if first.layout != torch.strided or second.layout != torch.strided or not first.numel() or not second.numel():
        return False
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a form that can be compared: sparse, quantized and nested tensors become dense."""
    if tensor.is_nested:
        padded: torch.Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
        return padded
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def significant_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dimensions that have more than one element: no other stride is ever used."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def tensor_leaves(tree: object) -> Sequence[torch.Tensor]:
    """The tensors of a tree, in order, including those in dataclasses and subclasses of dict."""
    return [leaf for _, leaf in named_leaves("", tree) if isinstance(leaf, torch.Tensor)]


def storages(values: Sequence[object]) -> dict[int, int]:
    """Sizes in bytes of the storages of all tensors that have one, by address."""
    sizes: dict[int, int] = {}
    for value in values:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse tensors have no storage
            if isinstance(value, torch.Tensor):
                sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sizes
