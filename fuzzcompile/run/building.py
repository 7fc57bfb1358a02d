"""Fresh state of a case for one run: its callable and its inputs, on a device and in a dtype."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.model.errors import CaseError
from fuzzcompile.run.case import CapturedState, Case, Reachable
from fuzzcompile.run.device import reapply_held, seed_everything
from fuzzcompile.run.exhaustion import first_line, is_exhausted_memory, memory_errors
from fuzzcompile.run.holders import holders, is_holder
from fuzzcompile.run.reachable import Reached
from fuzzcompile.run.streamed import Stream, is_large, is_unwritten, native
from fuzzcompile.run.tensors import LOW_FLOATS, StorageCopier, map_tensors, storages, tensor_leaves
from fuzzcompile.run.trees import tree_map

T = TypeVar("T")

RUN_SEED = 20240229


@dataclass(frozen=True)
class Program:
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

    def tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that exist before the call and are not inputs, by the name that a user knows them by.

        A streamed parameter is among them only once the program has written to it.
        """
        reached = self.reached().tensors
        return {name: native(tensor) for name, tensor in reached.items() if not is_unwritten(tensor)}

    def reached(self) -> Reachable:
        """All that exists before the call and is no input."""
        if self.state is not None:
            return self.state.reached()
        return Reached(roots_of(self.model, self.calls), restored=False)  # a case file's globals outlive a run


def build(case: Case, device: torch.device, *, double: bool = False, streamed: bool = False) -> Program:
    """Call the case's ``make()`` and copy what it returns to ``device`` (and to float64).

    Modules are copied too: ``make()`` may return a module that outlives a run.

    Args:
        case: the case.
        device: where the copy lives.
        double: convert every floating tensor to float64.
        streamed: with ``double``, convert the values of large parameters when an operator reads them, if the case
            differentiates nothing.

    Raises:
        CaseError: ``make()`` raises or does not return ``(callable, inputs)``.
        MemoryError: there is not enough memory, on the host or on the device.
    """
    seed_everything(RUN_SEED)
    with memory_errors():
        model, calls = _made(case)
        if case.state is not None:
            return _restored(case.state, model, calls, device, double=double)
        named = Reached(roots_of(model, calls)).tensors
        dtype = _widest_float([*named.values(), *tensor_leaves(calls)])
        names = {id(tensor): name for name, tensor in named.items()}
        originals = list(named.values())
        model, calls = _copied_objects(model, calls)
        copier = StorageCopier(double=double, device=device)
        roots = roots_of(model, calls)
        moved = {name: root for name, root in roots.items() if name or isinstance(root, nn.Module)}
        stream = Stream() if double and streamed and not case.differentiates else None
        _move(moved, copier, originals, device, double=double, stream=stream)
        own = Reached(roots).tensors

        def place(tensor: torch.Tensor) -> torch.Tensor:
            # A parameter that is also an input stays one tensor.
            return own[names[id(tensor)]] if id(tensor) in names else placed_input(tensor, copier)

        placed = map_tensors(place, calls)
    return Program(model, tuple(_as_arguments(call) for call in placed), dtype, double)


def _restored(
    state: CapturedState, model: Callable[..., object], calls: Sequence[object], device: torch.device, *, double: bool
) -> Program:
    """A captured call, restored in place: ``make`` returns the same objects every time, dataclasses included."""
    state.restore(device, double=double)
    dtype = _widest_float([*state.originals(), *tensor_leaves(calls)])
    copier = StorageCopier(double=double, device=device)
    made: dict[int, torch.Tensor] = {}  # an input that is given twice stays one tensor

    def place(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor if state.owns(tensor) else placed_input(tensor, copier)
        return made[id(tensor)]

    placed = pytree.tree_map_only(torch.Tensor, place, calls)
    return Program(model, tuple(_as_arguments(call) for call in placed), dtype, double, state)


def roots_of(model: object, calls: Sequence[object]) -> dict[str, object]:
    """The model, and the objects among the inputs that hold state; those of later calls are named after the call."""
    roots = {"": model}
    for number, call in enumerate(calls):
        roots.update((f"call{number}.{name}" if number else name, leaf) for name, leaf in holders(call).items())
    return roots


def _copied_objects(model: Callable[..., object], calls: list[object]) -> tuple[Callable[..., object], list[object]]:
    """The model if it is a module, and the objects among the inputs, copied: they may outlive a run.

    What a plain function closes over stays where it is.
    """
    memo: dict[int, object] = {}
    if isinstance(model, nn.Module):
        model, closed = _copied(model, memo), set[int]()
    else:
        closed = {id(value) for value in Reached({"": model}).objects}

    def copied(leaf: object) -> object:
        return _copied(leaf, memo) if is_holder(leaf) and id(leaf) not in closed else leaf

    return model, tree_map(lambda tensor: tensor, calls, copied)


def placed_input(tensor: torch.Tensor, copier: StorageCopier) -> torch.Tensor:
    """A copy of an input that is a leaf only if the input is, with the attributes that were set on it.

    The result of an operator may be written to in place, a leaf that requires a gradient may not; attributes hold what
    ``torch._dynamo.mark_dynamic`` has marked.
    """
    made = copier(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        with torch.inference_mode(False), torch.enable_grad():
            result = made.clone()
        if result.stride() == made.stride():
            result.retain_grad()
            made = result
    vars(made).update({name: value for name, value in vars(tensor).items() if not isinstance(value, torch.Tensor)})
    return made


def _made(case: Case) -> tuple[Callable[..., object], list[object]]:
    try:
        made = case.make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code: whatever it raises, SystemExit too, is an error of the case
        if is_exhausted_memory(error):
            raise
        raise CaseError(
            f"make() of {case.name} raises {type(error).__name__}: {first_line(error)}; fix the case."
        ) from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise CaseError(f"make() of {case.name} must return (module_or_callable, inputs).")
    reapply_held()
    model, inputs = made
    return model, [inputs, *(case.calls or ())]


def _copied(value: T, memo: dict[int, object]) -> T:
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
    stream: Stream | None,
) -> None:
    """Give every tensor that the roots hold (not globals and closures) its device and dtype and memory of its own.

    Args:
        roots: copies, which are changed in place.
        copier: copies tensors to the device, in float64 if ``double``.
        originals: the tensors of what they are copies of, and which they may share.
        device: where the tensors are to live.
        double: convert floating tensors to float64.
        stream: converts what it can when that is read.
    """
    shared = storages(originals).keys()
    for tensor in Reached(roots, functions=False).tensors.values():
        if stream is not None and is_large(tensor):
            tensor.data = tensor.detach().to(device)
            if stream.swap(tensor):
                continue
        held = storages([tensor]).keys()
        if tensor.device == device and not double and held and held.isdisjoint(shared):
            continue  # the copy is one already
        with contextlib.suppress(RuntimeError):  # inference tensors and subclasses stay as they are
            tensor.data = copier(tensor).detach()


def _widest_float(tensors: list[torch.Tensor]) -> torch.dtype:
    floating = {torch.zeros((), dtype=t.dtype).real.dtype if t.is_complex() else t.dtype for t in tensors}
    known = [dtype for dtype in (torch.float64, *LOW_FLOATS) if dtype in floating]
    return known[0] if known else torch.float32


def _as_arguments(call: object) -> object:
    return tuple(call) if isinstance(call, list) else call
