"""Fresh state of a case for one run: its callable and its inputs, on a device and in a dtype."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.model.errors import CaseError
from fuzzcompile.run.case import CapturedState, Case, Reachable
from fuzzcompile.run.device import (
    convert_memory_errors,
    describe_run_error,
    is_exhausted_memory,
    reapply_held,
    seed_everything,
)
from fuzzcompile.run.reachable_state import ReachedObjects, is_holder, name_holders
from fuzzcompile.run.tensors import (
    LOW_FLOATS,
    StorageCopier,
    double_dtype,
    flatten_storage,
    float64_by_default,
    is_plain,
    list_tensors,
    map_tree,
    measure_storages,
)
from fuzzcompile.run.transforms import keep_tangent

# Smaller tensors are converted once and for all.
LEAST_BYTES = 2**20
# Float64 values kept for the next operator that reads them: the weights of a loop, and those that layers share.
KEPT_BYTES = 256 * 2**20


class Float64Stream:
    """Makes parameters in float64 that take the memory of their own dtype: each operator converts what it reads.

    The float64 values that were read last are kept.
    """

    def __init__(self) -> None:
        self._values: dict[int, _Values] = {}
        self._recent: OrderedDict[int, torch.Tensor] = OrderedDict()

    def make_streamed(self, native: torch.Tensor) -> torch.Tensor:
        """The float64 form of a tensor that :func:`is_large`, whose memory it shares."""
        address = native.untyped_storage().data_ptr()
        if address not in self._values:
            self._values[address] = _Values(flatten_storage(native))
        return _Streamed(self, self._values[address], _read_geometry(native))

    def swap(self, parameter: torch.Tensor) -> bool:
        """Make ``parameter`` itself a streamed tensor, wherever it is referred to; False if that is not possible."""
        if not isinstance(parameter, nn.Parameter) or not is_large(parameter):
            return False
        made = nn.Parameter(self.make_streamed(parameter.data), requires_grad=parameter.requires_grad)
        try:
            torch.utils.swap_tensors(parameter, made)  # type: ignore[no-untyped-call]
        except RuntimeError:  # a weak reference, or something outside of Python, holds it
            return False
        return True

    def read(self, values: _Values, *, writes: bool) -> torch.Tensor:
        """The values in float64, as one row; from a write on, it takes the place of the native ones."""
        if values.written is not None:
            return values.written
        wide = self._recent.get(id(values))
        if wide is None:
            with torch.inference_mode(False):  # a parameter is no inference tensor
                wide = values.native.to(double_dtype(values.native.dtype))
            self._recent[id(values)] = wide
            while len(self._recent) > 1 and sum(recent.nbytes for recent in self._recent.values()) > KEPT_BYTES:
                self._recent.popitem(last=False)
        else:
            self._recent.move_to_end(id(values))
        if writes:
            values.written = wide
        return wide


def is_large(tensor: torch.Tensor) -> bool:
    """Return whether streaming ``tensor`` saves memory: it is a whole, large storage of low-precision values."""
    if not is_plain(tensor) or tensor.dtype not in LOW_FLOATS:
        return False
    if tensor.layout != torch.strided or tensor.is_nested or tensor.nbytes < LEAST_BYTES:
        return False
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def unstream(tensor: torch.Tensor) -> torch.Tensor:
    """A streamed tensor as a plain one: in its own dtype, or in float64 if it was written to. Others as they are."""
    if not isinstance(tensor, _Streamed):
        return tensor
    values = tensor._below
    return (values.native if values.written is None else values.written).as_strided(*tensor._geometry)


def is_streamed(value: object) -> TypeGuard[_Streamed]:
    """Return whether ``value`` is a streamed tensor."""
    return isinstance(value, _Streamed)


_Geometry = tuple[torch.Size, tuple[int, ...], int]


def _read_geometry(tensor: torch.Tensor) -> _Geometry:
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())


class _Values:
    def __init__(self, native: torch.Tensor) -> None:
        self.native = native
        self.written: torch.Tensor | None = None


class _Streamed(torch.Tensor):
    _stream: Float64Stream
    _below: _Values
    _geometry: _Geometry
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[_Streamed], stream: Float64Stream, values: _Values, geometry: _Geometry) -> _Streamed:
        row = values.native
        size, stride, offset = geometry
        with torch.inference_mode(False):
            made: _Streamed = torch.Tensor._make_wrapper_subclass(
                cls, size, strides=stride, storage_offset=offset, dtype=double_dtype(row.dtype), device=row.device
            )
        made._stream, made._below, made._geometry = stream, values, geometry
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if _is_view(func) and isinstance(args[0], cls):
            first, below = args[0], unstream(args[0])
            views = func(below, *args[1:], **(kwargs or {}))
            storage = below.untyped_storage().data_ptr()  # ``reshape`` copies what it cannot view
            leaves = pytree.tree_leaves(views)
            if all(v.dtype == below.dtype and v.untyped_storage().data_ptr() == storage for v in leaves):
                return pytree.tree_map(lambda view: cls(first._stream, first._below, _read_geometry(view)), views)
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


def _is_view(func: Any) -> bool:
    if not hasattr(func, "_schema") or func._schema.is_mutable or not func._schema.returns:
        return False
    return all(returned.alias_info is not None for returned in func._schema.returns)


T = TypeVar("T")

RUN_SEED = 20240229


@dataclass(frozen=True)
class CaseProgram:
    """Fresh state of a case on one device: the callable and the inputs of each call.

    Objects among the inputs that hold tensors are copied and converted like the inputs. ``dtype`` is the widest
    floating dtype among the tensors that ``make()`` returned (float32 if there are none), ``double`` says that they
    were converted to float64 afterwards. ``state`` is that of a captured call.
    """

    model: Callable[..., object]
    calls: tuple[object, ...]
    dtype: torch.dtype = torch.float32
    double: bool = False
    state: CapturedState | None = None

    def enter_precision(self) -> contextlib.AbstractContextManager[None]:
        """Compute in its precision what takes no floating tensor: whole numbers divided, tensors that it makes."""
        return float64_by_default() if self.double else contextlib.nullcontext()

    def collect_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that exist before the call and are not inputs, by the name that a user knows them by.

        A streamed parameter is among them only once the program has written to it.
        """
        reached = self.find_state().tensors
        written = (item for item in reached.items() if not is_streamed(item[1]) or item[1]._below.written is not None)
        return {name: unstream(tensor) for name, tensor in written}

    def find_state(self) -> Reachable:
        """All that exists before the call and is no input."""
        if self.state is not None:
            return self.state.reached()
        return ReachedObjects(name_roots(self.model, self.calls), restored=False)  # a case file's globals outlive a run


def build(case: Case, device: torch.device, *, double: bool = False, streamed: bool = False) -> CaseProgram:
    """Call the case's ``make()`` and copy what it returns to ``device`` (with ``double`` to float64).

    Modules are copied too: ``make()`` may return a module that outlives a run. With ``streamed`` the values of large
    parameters are converted when an operator reads them, if the case differentiates nothing.

    Raises:
        CaseError: ``make()`` raises or does not return ``(callable, inputs)``.
        MemoryError: there is not enough memory, on the host or on the device.
    """
    seed_everything(RUN_SEED)
    with convert_memory_errors():
        model, calls = call_make(case)
        if case.state is not None:
            return _restore_call(case.state, model, calls, device, double=double)
        named = ReachedObjects(name_roots(model, calls)).tensors
        dtype = _find_widest_float([*named.values(), *list_tensors(calls)])
        names = {id(tensor): name for name, tensor in named.items()}
        originals = list(named.values())
        model, calls = _copy_objects(model, calls)
        copier = StorageCopier(double=double, device=device)
        roots = name_roots(model, calls)
        moved = {name: root for name, root in roots.items() if name or isinstance(root, nn.Module)}
        stream = Float64Stream() if double and streamed and not case.differentiates else None
        _move(moved, copier, originals, device, double=double, stream=stream)
        own = ReachedObjects(roots).tensors

        def place(tensor: torch.Tensor) -> torch.Tensor:
            # A parameter that is also an input stays one tensor.
            return own[names[id(tensor)]] if id(tensor) in names else place_input(tensor, copier)

        placed = map_tree(place, calls)
    return CaseProgram(model, tuple(_as_arguments(call) for call in placed), dtype, double)


def _restore_call(
    state: CapturedState, model: Callable[..., object], calls: Sequence[object], device: torch.device, *, double: bool
) -> CaseProgram:
    """A captured call, restored in place: ``make`` returns the same objects every time, dataclasses included."""
    state.restore(device, double=double)
    dtype = _find_widest_float([*state.originals(), *list_tensors(calls)])
    copier = StorageCopier(double=double, device=device)
    made: dict[int, torch.Tensor] = {}  # an input that is given twice stays one tensor

    def place(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor if state.owns(tensor) else place_input(tensor, copier)
        return made[id(tensor)]

    placed = pytree.tree_map_only(torch.Tensor, place, calls)
    return CaseProgram(model, tuple(_as_arguments(call) for call in placed), dtype, double, state)


def name_roots(model: object, calls: Sequence[object]) -> dict[str, object]:
    """The model, and the objects among the inputs that hold state; those of later calls are named after the call."""
    roots = {"": model}
    for number, call in enumerate(calls):
        roots.update((f"call{number}.{name}" if number else name, leaf) for name, leaf in name_holders(call).items())
    return roots


def _copy_objects(model: Callable[..., object], calls: list[object]) -> tuple[Callable[..., object], list[object]]:
    """The model if it is a module, and the objects among the inputs, copied: they may outlive a run.

    What a plain function closes over stays where it is.
    """
    memo: dict[int, object] = {}
    if isinstance(model, nn.Module):
        model, closed = _copy(model, memo), set[int]()
    else:
        closed = {id(value) for value in ReachedObjects({"": model}).objects}

    def copy_leaf(leaf: object) -> object:
        return _copy(leaf, memo) if is_holder(leaf) and id(leaf) not in closed else leaf

    return model, map_tree(lambda tensor: tensor, calls, copy_leaf)


def place_input(tensor: torch.Tensor, copier: StorageCopier) -> torch.Tensor:
    """A copy of an input that is a leaf only if the input is, with the attributes that were set on it.

    The result of an operator may be written to in place, a leaf that requires a gradient may not; attributes hold what
    ``torch._dynamo.mark_dynamic`` has marked.
    """
    made = copier(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        with torch.inference_mode(False), torch.enable_grad():
            # A view stays one, with the others of its base.
            result = copier.make_computed(made) if tensor._is_view() else made.clone()
        if result.stride() == made.stride():
            result.retain_grad()
            made = result
    vars(made).update({name: value for name, value in vars(tensor).items() if not isinstance(value, torch.Tensor)})
    keep_tangent(made, tensor, copier)
    return made


def call_make(case: Case) -> tuple[Callable[..., object], list[object]]:
    """What ``make()`` returns: the callable, and the inputs of each call.

    Raises:
        CaseError: ``make()`` raises or does not return ``(callable, inputs)``.
    """
    try:
        made = case.make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code: whatever it raises, SystemExit too, is an error of the case
        if is_exhausted_memory(error):
            raise
        raise CaseError(f"make() of {case.name} raises {describe_run_error(error)}; fix the case.") from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise CaseError(f"make() of {case.name} must return (module_or_callable, inputs).")
    reapply_held()
    model, inputs = made
    return model, [inputs, *(case.calls or ())]


def _copy(value: T, memo: dict[int, object]) -> T:
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:  # a class's own __deepcopy__ may raise anything
        if is_exhausted_memory(error):
            raise
        return value  # what cannot be copied (non-leaf tensors as attributes, locks) is hardly shared


def _move(
    roots: Mapping[str, object],
    copier: StorageCopier,
    originals: Sequence[torch.Tensor],
    device: torch.device,
    *,
    double: bool,
    stream: Float64Stream | None,
) -> None:
    """Give every tensor that the roots hold (not globals and closures) its device and dtype and memory of its own.

    ``originals`` are the tensors of what the roots are copies of, whose memory they may share; ``stream`` converts what
    it can when that is read.
    """
    shared = measure_storages(originals).keys()
    for tensor in ReachedObjects(roots, functions=False).tensors.values():
        if stream is not None and is_large(tensor):
            tensor.data = tensor.detach().to(device)
            if stream.swap(tensor):
                continue
        held = measure_storages([tensor]).keys()
        if tensor.device == device and not double and held and held.isdisjoint(shared):
            continue  # the copy is one already
        with contextlib.suppress(RuntimeError):  # inference tensors and subclasses stay as they are
            tensor.data = copier(tensor).detach()


def _find_widest_float(tensors: list[torch.Tensor]) -> torch.dtype:
    floating = {torch.zeros((), dtype=t.dtype).real.dtype if t.is_complex() else t.dtype for t in tensors}
    known = [dtype for dtype in (torch.float64, *LOW_FLOATS) if dtype in floating]
    return known[0] if known else torch.float32


def _as_arguments(call: object) -> object:
    return tuple(call) if isinstance(call, list) else call
