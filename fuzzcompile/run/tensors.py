"""Copies of tensors that keep what a compiler can see: strides, offsets, overlap, shared storage."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard, TypeVar, cast

import numpy
import torch
from torch._C import DisableTorchFunctionSubclass
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from fuzzcompile.run.sharded_tensors import read_part

if TYPE_CHECKING:
    from numpy.typing import NDArray


NUMPY = "NumPy array"
"""One form for NumPy's arrays and scalars: compiling turns scalars into arrays without dimensions, as documented."""


def is_inexact(value: torch.Tensor | torch.dtype) -> bool:
    """Return whether a tensor or a dtype is of floating or complex numbers: they round, and have gradients."""
    dtype = value.dtype if isinstance(value, torch.Tensor) else value
    return dtype.is_floating_point or dtype.is_complex


# Values nested in containers that pytree does not know: dataclasses, and subclasses of dict, list and tuple.

T = TypeVar("T")


def describe_structure(tree: object) -> str:
    """The nesting of a tree, and the classes of its wrapped values."""
    leaves, spec = pytree.tree_flatten(tree)
    classes = [_describe_classes(leaf, frozenset()) for leaf in leaves if is_wrapped(leaf)]
    return f"{spec} with {', '.join(classes)}" if classes else str(spec)


def _describe_classes(leaf: object, path: frozenset[int]) -> str:
    inner = []
    if id(leaf) not in path:
        for name, value in _list_children(leaf):
            nested = [_describe_classes(v, path | {id(leaf)}) for v in pytree.tree_leaves(value) if is_wrapped(v)]
            spec = pytree.tree_structure(value)
            shown = "" if spec.is_leaf() else str(spec)
            inner.append(name + (f"={shown}{'/'.join(nested)}" if shown or nested else ""))
    return f"{type(leaf).__qualname__}({', '.join(inner)})"


def is_wrapped(leaf: object) -> bool:
    """Return whether a leaf of pytree is a container nevertheless."""
    if isinstance(leaf, type | torch.Tensor):
        return False
    if isinstance(leaf, dict | list | tuple):
        return bool(pytree.tree_structure(leaf).is_leaf())
    return dataclasses.is_dataclass(leaf)


def name_leaves(name: str, tree: object) -> Iterator[tuple[str, object]]:
    """The leaves of a tree by name: ``out0``, and ``out0.logits`` for a field of a dataclass."""
    for index, leaf in enumerate(pytree.tree_leaves(tree)):
        yield from unwrap(f"{name}{index}", leaf)


def unwrap(name: str, leaf: object, path: frozenset[int] = frozenset()) -> Iterator[tuple[str, object]]:
    """The leaves within one leaf of pytree: itself if it is not a container, nothing if it contains itself."""
    if not is_wrapped(leaf):
        yield name, leaf
        return
    if id(leaf) in path:
        return
    for key, value in _list_children(leaf):
        leaves = pytree.tree_leaves(value)
        single = len(leaves) == 1 and leaves[0] is value
        for index, inner in enumerate(leaves):
            yield from unwrap(f"{name}.{key}" + ("" if single else str(index)), inner, path | {id(leaf)})


def _list_children(leaf: object) -> list[tuple[str, object]]:
    fields = [entry.name for entry in dataclasses.fields(leaf)] if dataclasses.is_dataclass(leaf) else []
    children = [(name, getattr(leaf, name, None)) for name in fields]
    if isinstance(leaf, dict):
        children += [(str(key), value) for key, value in leaf.items() if key not in fields]
    elif isinstance(leaf, list | tuple) and not fields:
        children += [(str(index), value) for index, value in enumerate(leaf)]
    return children


def map_tree(
    function: Callable[[torch.Tensor], torch.Tensor], tree: T, objects: Callable[[object], object] = lambda leaf: leaf
) -> T:
    """The tree with ``function`` applied to each tensor, and ``objects`` to each other leaf.

    Dataclasses and subclasses of containers are walked too, and stay the objects they are if nothing in them changes.
    What occurs twice is mapped once: a compiler sees whether two inputs are the same tensor.
    """
    return _TreeMapper(function, objects).map_tree(tree)


class _TreeMapper:
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], objects: Callable[[object], object]) -> None:
        self._function = function
        self._objects = objects
        # Each with the object it was made from: the id of a freed object may be given to a new one.
        self._made: dict[int, tuple[object, object]] = {}

    def map_tree(self, tree: T) -> T:
        mapped: T = pytree.tree_map(self._map_leaf, tree)
        return mapped

    def _map_leaf(self, leaf: object) -> object:
        if id(leaf) in self._made:
            return self._made[id(leaf)][1]
        if isinstance(leaf, torch.Tensor):
            made = self._function(leaf)
            self._made[id(leaf)] = leaf, made
            return made
        if not is_wrapped(leaf):
            return self._objects(leaf)
        changes = any(self._map_leaf(value) is not value for _, value in unwrap("", leaf))
        return self._rebuild(leaf) if changes else leaf

    def _rebuild(self, leaf: object) -> object:
        """A copy made without running code of the class, which may refuse or convert what it is given."""
        made: Any  # an instance of the leaf's own class
        if isinstance(leaf, tuple):
            made = tuple.__new__(type(leaf), [self.map_tree(value) for value in leaf])
        else:
            made = type(leaf).__new__(type(leaf))
        self._made[id(leaf)] = leaf, made
        if isinstance(leaf, dict):
            # dict's own method would leave an OrderedDict without its order.
            kind = OrderedDict if isinstance(leaf, OrderedDict) else dict
            for key, value in leaf.items():
                kind.__setitem__(made, key, self.map_tree(value))
        elif isinstance(leaf, list):
            list.extend(made, [self.map_tree(value) for value in leaf])
        slots = [entry.name for entry in dataclasses.fields(leaf)] if dataclasses.is_dataclass(leaf) else []
        attributes = dict.fromkeys([*getattr(leaf, "__dict__", ()), *slots])
        for name in attributes:
            if hasattr(leaf, name):
                object.__setattr__(made, name, self.map_tree(getattr(leaf, name)))
        return made


_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, int, float, bool, str, type(None)))
SHORT_FLOATS = (torch.float16, torch.bfloat16)
LOW_FLOATS = (torch.float32, *SHORT_FLOATS)
# The last copy of each storage, by address, dtype and device, and by whether it is an inference tensor.
KnownCopies = dict[tuple[int, torch.dtype, torch.device, bool], torch.Tensor]
LOW_COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def materialize_zeros(value: object) -> object:
    """A tensor of zeros in place of a tensor without memory, which autograd makes (the gradient of ``sgn``).

    A dispatch mode receives such tensors below the layer that handles them: kernels would read address 0.
    """
    is_zero = getattr(torch, "_is_zerotensor", None)
    if is_zero is None or not isinstance(value, torch.Tensor) or not is_zero(value):
        return value
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device)


def map_leaves(function: Callable[[Any], object], tree: Any) -> Any:
    """``torch.utils._pytree.tree_map``, several times as fast on the arguments of operators, for dispatch modes."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([map_leaves(function, value) for value in tree])
    if kind is dict:
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if kind in _LEAVES:
        return function(tree)
    return pytree.tree_map(function, tree)


def has_meta_tensors(*values: object) -> bool:
    """Return whether some tensor among ``values`` (trees) is a meta tensor: autograd then wants an operator's shape."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in pytree.tree_leaves(values))


class StorageCopier:
    """Copies tensors storage by storage, so that views of one buffer stay views of one buffer.

    With ``double`` every floating storage is converted to float64 (complex to complex128). With ``device`` the copies
    live there. ``known`` is shared by several copiers, none of them with ``double`` or ``device``: a storage whose bits
    have not changed since it was last copied is not copied again, and all copiers share the copy, which must not be
    written to. Bits are compared because compiled code writes without counting versions.
    """

    def __init__(
        self, *, double: bool = False, device: torch.device | None = None, known: KnownCopies | None = None
    ) -> None:
        self._double = double
        self._device = device
        self._known = known
        self._bases: dict[tuple[int, torch.dtype, torch.device], torch.Tensor] = {}
        self._whole_tensors: dict[int, torch.Tensor] = {}
        self._of_own_class: dict[int, torch.Tensor] = {}
        self._computed: dict[int, torch.Tensor] = {}
        self._keep: list[torch.Tensor] = []  # the address of a freed storage may be given to a new one

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of ``tensor``: same class, shape, stride and offset; detached leaf, same requires_grad."""
        if not has_own_class(tensor) and not is_wrapper(tensor):
            return self._copy(tensor)
        if id(tensor) not in self._of_own_class:
            copied = self._copy_wrapper(tensor) if is_wrapper(tensor) else self._copy_subclass(tensor)
            self._of_own_class[id(tensor)] = copied
        return self._of_own_class[id(tensor)]

    def _copy_subclass(self, tensor: torch.Tensor) -> torch.Tensor:
        with DisableTorchFunctionSubclass():  # operators of the class are the program's to call
            copied = self._copy(tensor).detach().as_subclass(type(tensor)).requires_grad_(tensor.requires_grad)
        vars(copied).update(map_tree(self, dict(vars(tensor))))
        return copied

    def _copy_wrapper(self, tensor: Any) -> torch.Tensor:
        self._keep.append(tensor)
        names, context = tensor.__tensor_flatten__()
        held = {name: getattr(tensor, name) for name in names}  # a mesh of devices, too
        inner = {name: self(value) if isinstance(value, torch.Tensor) else value for name, value in held.items()}
        made: torch.Tensor = type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
        return made.requires_grad_(tensor.requires_grad)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or tensor.is_quantized:
            return self._copy_whole(tensor.detach()).requires_grad_(tensor.requires_grad)
        source = tensor.detach().resolve_conj().resolve_neg()
        self._keep += [tensor, source]
        shape = source.size(), source.stride(), source.storage_offset()
        viewed = _find_viewed(tensor)
        if viewed is not None:
            # To a compiler, a view of a tensor is not the same as one of two views of a third tensor.
            return self(viewed).as_strided(*shape)
        if id(tensor) not in self._whole_tensors:
            storage = source.untyped_storage()
            key = (storage.data_ptr() or id(storage), source.dtype, source.device)
            if key not in self._bases:
                self._bases[key] = self._copy_flat(flatten_storage(source))
            # Detached: not a view but a leaf, since gradients are compared where the program asked for them.
            self._whole_tensors[id(tensor)] = self._bases[key].as_strided(*shape).detach()
        return self._whole_tensors[id(tensor)].requires_grad_(tensor.requires_grad)

    def make_computed(self, copied: torch.Tensor) -> torch.Tensor:
        """A copied tensor as a view of the result of an operator, one for each copied storage; it requires a gradient.

        Such a view may be written to in place, which a leaf and its views may not. It needs grad mode.
        """
        key = copied.untyped_storage().data_ptr()
        if key not in self._computed:
            self._computed[key] = flatten_storage(copied.detach()).requires_grad_().clone()
        return self._computed[key].as_strided(copied.size(), copied.stride(), copied.storage_offset())

    def _copy_flat(self, flat: torch.Tensor) -> torch.Tensor:
        if self._known is None or not flat.data_ptr():
            return self._copy_whole(flat)
        key = (flat.data_ptr(), flat.dtype, flat.device, torch.is_inference_mode_enabled())
        before = self._known.get(key)
        if before is None or not _same_bits(before, flat):
            before = self._known[key] = self._copy_whole(flat)
        return before

    def _copy_whole(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_quantized:
            return tensor.clone() if self._device in (None, tensor.device) else tensor.to(self._device)
        dtype = double_dtype(tensor.dtype) if self._double else tensor.dtype
        return tensor.to(self._device or tensor.device, dtype, copy=True)


def is_plain(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor of torch's own class, or a parameter: no subclass that does as it likes."""
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def is_wrapper(value: object) -> bool:
    """Return whether a value is a tensor without memory of its own that says which tensors it is made of.

    Nested tensors, which are such too, are handled as torch's own.
    """
    if is_plain(value) or not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
        return False
    return not has_own_class(value) and is_traceable_wrapper_subclass(value)


def is_wrapper_class(kind: type) -> bool:
    """Return whether a class of tensors is of wrappers: a dispatch mode leaves operators to it, and sees what it calls.

    That does not hold for nested tensors, which are handled as torch's own.
    """
    return hasattr(kind, "__tensor_flatten__") and not kind.__module__.startswith("torch.nested.")


def is_fake_class(kind: type) -> bool:
    """Return whether a class is that of the compiler's tensors without values, which have no arithmetic."""
    return kind.__module__ == "torch._subclasses.fake_tensor"


def list_wrapped(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a wrapper is made of, by name, and what these are made of; of any other value none."""
    for attribute in value.__tensor_flatten__()[0] if is_wrapper(value) else ():
        inner = getattr(value, attribute)
        if isinstance(inner, torch.Tensor):
            yield f"{name}.{attribute}", inner
            yield from list_wrapped(f"{name}.{attribute}", inner)


def has_own_class(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a class that has memory as torch's has, and may call operators in its own way."""
    kind = type(tensor)
    if kind is torch.Tensor or isinstance(tensor, torch.nn.Parameter | torch.nn.Buffer):
        return False
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def strip_class(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself as one of torch's plain ones; shares its memory."""
    if not has_own_class(tensor):
        return tensor
    with DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def flatten_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a strided tensor as one row of elements of its dtype; shares its memory."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def _find_viewed(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that ``tensor`` is a plain view of, outside of autograd."""
    base = tensor._base
    if base is None or base.dtype != tensor.dtype or base.layout != torch.strided:
        return None
    differentiable = tensor.requires_grad or base.requires_grad
    return None if differentiable or tensor.is_conj() or tensor.is_neg() or base.is_conj() or base.is_neg() else base


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two rows of elements of one dtype hold the same bits (NaN like any other)."""
    if first.numel() != second.numel():
        return False
    unit = torch.int64 if first.numel() * first.element_size() % 8 == 0 else torch.uint8
    return torch.equal(first.view(unit), second.view(unit))


def view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in row-major order as bytes: shape ``(n,)``, dtype ``uint8``; a copy where they do not lie so.

    Raises:
        RuntimeError: it has no plain elements (sparse, quantised).
    """
    plain = tensor.detach().contiguous()
    # A tensor of one element is contiguous whatever its strides are, and keeps them when it is reshaped.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def double_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are kept for a float64 run."""
    return torch.float64 if dtype.is_floating_point else LOW_COMPLEX.get(dtype, dtype)


@contextlib.contextmanager
def float64_by_default() -> Iterator[None]:
    """Have operators on whole numbers, and factories that name no dtype, compute in float64 in the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def copy_tree(
    tree: T, *, double: bool = False, device: torch.device | None = None, known: KnownCopies | None = None
) -> T:
    """Copy every tensor of a tree through one :class:`StorageCopier`; other leaves stay as they are."""
    return map_tree(StorageCopier(double=double, device=device, known=known), tree)


def share_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two strided tensors that have elements lie in one storage, or parts of which they are made do."""
    if is_wrapper(first) or is_wrapper(second):
        parts = ([part for _, part in list_wrapped("", whole)] or [whole] for whole in (first, second))
        return any(itertools.starmap(share_storage, itertools.product(*parts)))
    if first.layout != torch.strided or second.layout != torch.strided or not first.numel() or not second.numel():
        return False
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def has_own_elements(tensor: torch.Tensor) -> bool:
    """Return whether the strides say that no two elements of a strided tensor share memory."""
    reached = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reached:
            return False
        reached += stride * (size - 1)
    return True


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has elements and no memory, which was given back: nothing may read it."""
    if tensor.layout != torch.strided or tensor.is_nested or not tensor.numel() or is_wrapper(tensor):
        return False
    return tensor.untyped_storage().nbytes() == 0 and not tensor.is_meta


def densify(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as it can be compared: sparse, quantized and nested ones become dense, a ``DTensor`` its part here."""
    tensor = read_part(tensor)
    if tensor.is_nested:
        padded: torch.Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
        return padded
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def list_significant_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dimensions that have more than one element: no other stride is ever used."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def list_tensors(tree: object) -> Sequence[torch.Tensor]:
    """The tensors of a tree, in order, including those in dataclasses and subclasses of dict."""
    return [leaf for _, leaf in name_leaves("", tree) if isinstance(leaf, torch.Tensor)]


def measure_storages(values: Sequence[object]) -> dict[int, int]:
    """Sizes in bytes of the storages of all tensors that have one, by address."""
    sizes: dict[int, int] = {}
    for value in values:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse tensors have no storage
            if isinstance(value, torch.Tensor):
                sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sizes


# Operators that run functions (``torch.cond``, loops): a dispatch mode has to see what these functions do.

# What a dispatch mode is called with: an operator of ATen, of torchvision, of the user's.
Operator: TypeAlias = "torch._ops.OpOverload[..., Any]"


def is_higher_order(operator: object) -> bool:
    """Return whether ``operator`` is a higher-order one: it has no schema, and its arguments may be functions."""
    return isinstance(operator, torch._ops.HigherOrderOperator)


def reduce_operator(value: object) -> tuple[Callable[..., object], tuple[str, ...]] | None:
    """The reduction of an operator, or a namespace of operators, to its name, for picklers: pickle knows none of them.

    None for anything else.
    """
    if isinstance(value, torch._ops.OpOverload):
        return _find_operator, (*value._schema.name.split("::"), value._overloadname)
    if isinstance(value, torch._ops.OpOverloadPacket):
        return _find_operator, tuple(value._qualified_op_name.split("::"))
    if isinstance(value, type(torch.ops.aten)):
        return _find_operator, (value.name,)
    return (_find_operator, ()) if value is torch.ops else None


def _find_operator(*path: str) -> object:
    return functools.reduce(getattr, path, torch.ops)


def name_collective(operator: object) -> str | None:
    """The name of a collective operator without its namespace; None for an operator that waits for no other process."""
    schema = getattr(operator, "_schema", None)
    called = None if schema is None else _COLLECTIVE.match(schema.name)
    return None if called is None else called[1]


_COLLECTIVE = re.compile(r"_?c10d(?:_functional(?:_autograd)?)?::(\w+)")


def run_inside(
    mode: TorchDispatchMode, operator: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object]
) -> T:
    """Run a higher-order operator from within ``mode``'s own handler, so that its functions run under ``mode``."""

    def wrap(value: object) -> object:
        if not callable(value) or isinstance(value, torch.Tensor):
            return value

        # In eager mode dynamo handles these operators, and would trace into ``run``.
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def run(*inner: object, **named: object) -> object:
            with mode:
                return value(*inner, **named)

        return cast(object, run)

    args, kwargs = pytree.tree_map(wrap, (tuple(args), dict(kwargs)))
    return operator(*args, **kwargs)


# Tensors that share memory: exactly, element address by element address.

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


class _AddressRange(NamedTuple):
    """Range of a value in memory: its first byte and the one after its last; ``position`` is its rank by name."""

    device: str
    low: int
    high: int
    position: int
    array: NDArray[numpy.generic]

    @classmethod
    def find(cls, position: int, value: object) -> _AddressRange | None:
        device, array = "cpu", value
        if isinstance(value, torch.Tensor):
            device, array = str(value.device), None
            # Subclasses without memory of their own and outputs that a CUDA graph has taken back have no address.
            with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
                if value.layout != torch.strided or value.is_nested:  # the tensor that holds its values
                    value = value._values() if value.layout == torch.sparse_coo else value.values()
                array = numpy.asarray(_Addresses(value)) if value.numel() and value.data_ptr() else None
        if not isinstance(array, numpy.ndarray) or not array.size:
            return None
        return cls(device, *numpy.lib.array_utils.byte_bounds(array), position, array)


def find_aliases(named: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """For every name the earlier names whose tensors it shares memory with.

    Candidates are found by sweeping over the address ranges, so that only pairs whose ranges intersect are compared
    element by element: linear in the number of tensors where nothing is shared.
    """
    names = list(named)
    ranges = (_AddressRange.find(position, named[name]) for position, name in enumerate(names))
    shared: dict[int, list[int]] = {}
    active: list[_AddressRange] = []
    for current in sorted((each for each in ranges if each is not None), key=lambda each: each[:2]):
        active = [earlier for earlier in active if earlier.device == current.device and earlier.high > current.low]
        for earlier in active:
            if _overlap(current.array, earlier.array):
                first, second = sorted((current.position, earlier.position))
                shared.setdefault(second, []).append(first)
        active.append(current)
    return {names[position]: tuple(names[i] for i in sorted(firsts)) for position, firsts in shared.items()}


def _overlap(first: NDArray[numpy.generic], second: NDArray[numpy.generic]) -> bool:
    try:
        return numpy.shares_memory(first, second, max_work=_MAX_WORK)
    except numpy.exceptions.TooHardError:
        return True  # the ranges intersect, and the layouts are too irregular to decide
