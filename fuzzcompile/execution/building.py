"""Fresh state of a case for one run: its callable and its inputs, on a device and in a dtype."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fuzzcompile.case import Case, State
from fuzzcompile.errors import CaseError
from fuzzcompile.execution.device import reapply_held, seed_everything
from fuzzcompile.execution.exhaustion import first_line, is_exhausted_memory, memory_errors
from fuzzcompile.execution.reachable import Reached
from fuzzcompile.execution.streamed import Stream, is_large, is_unwritten, native
from fuzzcompile.execution.tensors import LOW_FLOATS, StorageCopier, map_tensors, storages, tensor_leaves

RUN_SEED = 20240229


@dataclass(frozen=True)
class Program:
    """Fresh state of a case on one device: the callable and the inputs of each call.

    ``dtype`` is the widest floating dtype among the tensors that ``make()`` returned (float32 if there are none),
    ``double`` says that they were converted to float64 afterwards. ``state`` is that of a captured call.
    """

    model: Callable[..., object]
    calls: tuple[object, ...]
    dtype: torch.dtype = torch.float32
    double: bool = False
    state: State | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that exist before the call and are not inputs, by the name that a user knows them by.

        A streamed parameter is among them only once the program has written to it.
        """
        if self.state is not None:
            return self.state.tensors()
        reached = Reached({"": self.model}).tensors
        return {name: native(tensor) for name, tensor in reached.items() if not is_unwritten(tensor)}


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
            # The state that the callable reaches is restored in place; ``make`` returns the same objects every time.
            case.state.restore(device, double=double)
            own = named = case.state.tensors()
            originals: Sequence[torch.Tensor] = case.state.originals()
        else:
            named = Reached({"": model}).tensors
            originals = list(named.values())
        dtype = _widest_float([*originals, *tensor_leaves(calls)])
        names = {id(tensor): name for name, tensor in named.items()}
        if case.state is None:
            if isinstance(model, nn.Module):
                model = _copied_module(model)
                stream = Stream() if double and streamed and not case.differentiates else None
                _move(model, originals, device, double=double, stream=stream)
            own = Reached({"": model}).tensors
        copier = StorageCopier(double=double, device=device)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            # A parameter that is also an input stays one tensor.
            return own[names[id(tensor)]] if id(tensor) in names else placed_input(tensor, copier)

        placed = map_tensors(place, calls)
    return Program(model, tuple(_as_arguments(call) for call in placed), dtype, double, case.state)


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


def _copied_module(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # a module's own __deepcopy__ may raise anything
        if is_exhausted_memory(error):
            raise
        return module  # a module that cannot be copied (non-leaf tensors as attributes, locks) is hardly shared


def _move(
    module: nn.Module, originals: Sequence[torch.Tensor], device: torch.device, *, double: bool, stream: Stream | None
) -> None:
    """Give every tensor of the module (not of globals and closures) its device and dtype and memory of its own.

    Args:
        module: a copy of a module, which is changed in place.
        originals: the tensors of the module that it is a copy of, and which it may share.
        device: where the tensors are to live.
        double: convert floating tensors to float64.
        stream: converts what it can when that is read.
    """
    copier, shared = StorageCopier(double=double, device=device), storages(originals).keys()
    for tensor in Reached({"": module}, functions=False).tensors.values():
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
