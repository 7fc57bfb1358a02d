"""The layers of a program, and taps that hand over what goes into each of them and what comes out.

:func:`watched` serves eager runs. :func:`tapped` serves compiled ones: dynamo traces its hooks with the model, so that
what they keep becomes outputs of the compiled graph. They therefore use nothing but lists, tuples and dicts.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.run.case_program import CaseProgram
from fuzzcompile.run.reachable_state import ReachedObjects
from fuzzcompile.run.sharded_tensors import find_sharded_class, is_in_group, read_own

# What is kept of a run: the inputs and outputs of each call of a layer, whole or sampled.

# Seeds the choice of elements, so that two machines sample the same.
_SEED = 14
# Elements of a tensor for which there is no room.
SAMPLE = 4096


@dataclass(frozen=True)
class KeptTensor:
    """A tensor of a run, of a ``DTensor`` what this process holds.

    If it is not ``whole``, ``values`` are 1-D: the elements at :func:`positions`.
    """

    values: torch.Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    whole: bool = True

    @classmethod
    def of(cls, tensor: torch.Tensor, most: int | None = None) -> KeptTensor:
        """Keep a copy of ``tensor`` on the CPU, of at most ``most`` elements (None: of all)."""
        detached = read_own(tensor)
        shape, count = tuple(detached.shape), detached.numel()
        if most is None or count <= most:
            return cls(detached.to("cpu", copy=True), shape, detached.dtype)
        chosen = positions(count, most).to(detached.device)
        return cls(detached.reshape(-1)[chosen].cpu(), shape, detached.dtype, whole=False)

    @classmethod
    def view(cls, tensor: torch.Tensor) -> KeptTensor:
        """The whole of ``tensor`` without a copy, where it does not change any more."""
        own = read_own(tensor)
        return cls(own, tuple(own.shape), own.dtype)

    def beside(self, other: KeptTensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The elements on the CPU that two tensors of one shape have; None if both are samples of different sizes."""
        if self.whole and other.whole:
            return self.values.cpu(), other.values.cpu()
        ours, theirs = self._like(other), other._like(self)
        return (ours, theirs) if ours.shape == theirs.shape else None

    def _like(self, other: KeptTensor) -> torch.Tensor:
        """The elements, or if only these are whole, those that the sample ``other`` has."""
        if not self.whole:
            return self.values
        chosen = positions(self.values.numel(), other.values.numel()).to(self.values.device)
        return self.values.reshape(-1)[chosen].cpu()


class Keeping:
    """Keeps the tensors of one run: whole while ``budget`` bytes last, then :data:`SAMPLE` elements of each.

    A tensor that leaves one layer and enters the next is kept once: it has the bits of the one kept last in its shape.
    """

    def __init__(self, budget: int) -> None:
        self.left = budget
        self._last: dict[tuple[torch.dtype, tuple[int, ...]], KeptTensor] = {}

    def limit(self, tensor: torch.Tensor) -> int | None:
        """The number of elements to keep of a tensor; None for all."""
        return None if tensor.numel() * tensor.element_size() <= self.left else SAMPLE

    def __call__(self, tensor: torch.Tensor) -> KeptTensor:
        """Keep ``tensor``; a parameter on the CPU, which no run changes, is not copied unless FSDP may free it."""
        if isinstance(tensor, nn.Parameter) and tensor.device.type == "cpu" and not is_in_group():
            return KeptTensor.view(tensor)
        tensor = read_own(tensor)
        key = tensor.dtype, tuple(tensor.shape)
        last = self._last.get(key)
        if last is not None and last.whole and torch.equal(last.values, tensor.to(last.values.device)):
            return last
        kept = self._last[key] = KeptTensor.of(tensor, self.limit(tensor))
        self.left -= kept.values.nbytes
        return kept


def positions(count: int, most: int) -> torch.Tensor:
    """``most`` of ``count`` positions in ascending order (int64), the same on every machine."""
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(count, (most,), generator=generator).sort().values


@dataclass(frozen=True)
class KeptCall:
    """One call of a layer: the tensors among its arguments and in its result, in the order of their tree."""

    name: str
    number: int
    kind: str
    inputs: Sequence[KeptTensor]
    outputs: Sequence[KeptTensor]

    @property
    def label(self) -> str:
        """The layer's name, with the number of the call behind it from the second on."""
        return self.name if not self.number else f"{self.name}#{self.number + 1}"


def leaves(value: object) -> list[torch.Tensor]:
    """The tensors in a tree of tuples, lists, dicts and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    else:  # dynamo does not trace dataclasses.fields()
        parts = [getattr(value, name) for name in getattr(type(value), "__dataclass_fields__", {})]
    collected: list[torch.Tensor] = []
    for part in parts:
        collected += leaves(part)
    return collected


# Eager runs: a observer hears of every call of a layer or, with ``--ops``, of an operator.


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer that has ended: ``number`` counts the calls of that name, ``function`` runs it again."""

    name: str
    number: int
    kind: str
    function: Callable[..., object]


class CallObserver(Protocol):
    """Observer of every call of a layer or operator."""

    def entered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Take what is needed of the arguments before they are written to."""

    def left(self, call: LayerCall, entered: Any, result: object) -> None:
        """Take the result; ``entered`` is what :meth:`entered` returned."""


@dataclass(frozen=True)
class Collector:
    """Keeps the calls in the order in which they ended, by name and number."""

    keep: Keeping
    calls: dict[tuple[str, int], KeptCall]

    def entered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[KeptTensor]:
        """Keep the tensors among the arguments."""
        return [self.keep(tensor) for tensor in leaves((args, kwargs))]

    def left(self, call: LayerCall, entered: list[KeptTensor], result: object) -> None:
        """Keep the call with what it returned."""
        outputs = [self.keep(tensor) for tensor in leaves(result)]
        self.calls[call.name, call.number] = KeptCall(call.name, call.number, call.kind, entered, outputs)


@contextlib.contextmanager
def watched(
    program: CaseProgram, depth: int | None, observer: CallObserver, *, operators: bool
) -> Iterator[Callable[..., object]]:
    """Tell ``observer`` of the layers or operators that an eager run calls in the block; yields what to call there."""
    with contextlib.ExitStack() as stack:
        if not operators:
            count, observing = Counter[str](), list[str]()
            for name, module in find_layers(program, depth).items():
                _watch_layer(stack, name, module, observer, count, observing)
            yield program.model
            return
        places: list[str] = []  # the modules that are being called, innermost last

        def enter(name: str, *_: object) -> None:
            places.append(name)

        def leave(*_: object) -> None:
            places.pop()

        for root_name, root in find_roots(program).items():
            for name, module in root.named_modules(prefix=root_name):
                stack.callback(module.register_forward_pre_hook(functools.partial(enter, name)).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)

        def called(*args: object, **kwargs: object) -> object:
            places.append("")
            try:
                return program.model(*args, **kwargs)
            finally:
                places.pop()

        stack.enter_context(_Operators(places, observer))
        yield called


def _watch_layer(
    stack: contextlib.ExitStack,
    name: str,
    module: nn.Module,
    observer: CallObserver,
    count: Counter[str],
    observing: list[str],  # the layer that the observer hears of: it may run that again, and the layers within
) -> None:
    pending: list[Any] = []

    def enter(_module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not observing:
            with _disable_current_modes():
                pending.append(observer.entered(args, kwargs))

    def leave(_module: nn.Module, _args: tuple[object, ...], result: object) -> None:
        if observing or not pending:
            return
        call = LayerCall(name, count[name], type(module).__name__, module)
        count[name] += 1
        observing.append(name)
        try:
            with _disable_current_modes():
                observer.left(call, pending.pop(), result)
        finally:
            observing.clear()

    stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True).remove)
    stack.callback(module.register_forward_hook(leave).remove)


class _Operators(TorchFunctionMode):
    """Sees calls from Python; inside torch's own Python functions it is off, so that one call is one operator."""

    def __init__(self, places: Sequence[str], observer: CallObserver) -> None:
        super().__init__()
        self._places, self._observer = places, observer
        self._count: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        label = (resolve_name(func) or name).removeprefix("torch.").removeprefix("nn.functional.")
        # Access to an attribute of a tensor computes nothing.
        if name in ("__get__", "__set__") or not label or not self._places or not leaves((args, given)):
            return func(*args, **given)
        place = self._places[-1]
        name = f"{place}: {label}" if place else label
        with _disable_current_modes():
            entered = self._observer.entered(args, given)
        result = func(*args, **given)
        if leaves(result):
            call = LayerCall(name, self._count[name], label, func)
            self._count[name] += 1
            with _disable_current_modes():
                self._observer.left(call, entered, result)
        return result


Event = tuple[str, Literal["in", "out"], list[torch.Tensor]]


_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks")


@contextlib.contextmanager
def tapped(layers: Mapping[str, nn.Module], events: list[Event]) -> Iterator[Callable[[], None]]:
    """Append copies, which a program cannot write to, of what goes in and out of ``layers``, also where traced.

    Of a ``DTensor`` it is the part that this process has: a copy of one whose parts are to be added adds them.

    What is yielded puts the taps back where the state of a script, which has none, was restored.
    """
    sharded = find_sharded_class()

    def copy_part(tensor: torch.Tensor) -> torch.Tensor:
        own: Any = tensor.detach()
        copied: torch.Tensor = (own.to_local() if isinstance(own, sharded) else own).clone()
        return copied

    def tap(name: str, direction: Literal["in", "out"]) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, kwargs_or_result: object) -> None:
            value = (args, kwargs_or_result) if direction == "in" else kwargs_or_result
            events.append((name, direction, [copy_part(tensor) for tensor in leaves(value)]))

        return hook

    with contextlib.ExitStack() as stack:
        for name, module in layers.items():
            # Before the hooks that distribute the inputs of a layer, which run again where it does.
            hook = module.register_forward_pre_hook(tap(name, "in"), with_kwargs=True, prepend=True)
            stack.callback(hook.remove)
            stack.callback(module.register_forward_hook(tap(name, "out")).remove)
        hooks = [(module, name, dict(getattr(module, name))) for module in layers.values() for name in _HOOKS]

        def put_back() -> None:
            for module, name, registered in hooks:
                getattr(module, name).clear()
                getattr(module, name).update(registered)

        yield put_back


def calls_in(events: list[Event], layers: Mapping[str, nn.Module], keep: Keeping) -> dict[tuple[str, int], KeptCall]:
    """The calls that ``events`` tell of, in the order in which they ended; ``events`` is emptied."""
    pending, count = defaultdict[str, list[list[KeptTensor]]](list), Counter[str]()
    calls: dict[tuple[str, int], KeptCall] = {}
    for name, direction, tensors in events:
        kept = [keep(tensor) for tensor in tensors]
        if direction == "in":
            pending[name].append(kept)
        elif pending[name]:
            kind = type(layers[name]).__name__
            calls[name, count[name]] = KeptCall(name, count[name], kind, pending[name].pop(), kept)
            count[name] += 1
    events.clear()
    return calls


_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def find_layers(program: CaseProgram, depth: int | None) -> dict[str, nn.Module]:
    """The modules to watch, by qualified name, outermost first.

    ``depth`` is in levels of the module tree, lists of modules not counted: 1 is the children of the root, 0 none. By
    default, it is the elements of each list of modules that holds a stack, and whatever stands beside such lists.
    """
    chosen: dict[str, nn.Module] = {}
    for name, root in find_roots(program).items():
        chosen |= _beside_stacks(root, name) if depth is None else _down_to(root, name, depth)
    return chosen


def find_roots(program: CaseProgram) -> Mapping[str, nn.Module]:
    """The outermost modules that the program reaches, by name; a program that is a module has one, named ``""``."""
    if isinstance(program.model, nn.Module):
        return dict([_unwrap(program.model, "")])
    reached = [value for value in ReachedObjects({"": program.model}).objects if isinstance(value, nn.Module)]
    inner = {id(child) for module in reached for child in module.modules() if child is not module}
    outer = [module for module in reached if id(module) not in inner]
    if len(outer) == 1:
        return dict([_unwrap(outer[0], "")])
    return {f"{type(module).__name__.lower()}{index}": module for index, module in enumerate(outer)}


def _unwrap(module: nn.Module, name: str) -> tuple[str, nn.Module]:
    """The name of a module and the module; of one that only passes on to another, as DDP does, the other's."""
    children = list(_children(module, name))
    if len(children) == 1 and not isinstance(children[0][1], _CONTAINERS) and any(children[0][1].children()):
        return _unwrap(children[0][1], children[0][0])
    return name, module


def _children(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in module.named_children():
        yield f"{name}.{child_name}" if name else child_name, child


def _down_to(module: nn.Module, name: str, depth: int) -> dict[str, nn.Module]:
    chosen: dict[str, nn.Module] = {}
    for path, child in _children(module, name) if depth else ():
        is_container = isinstance(child, _CONTAINERS)
        chosen |= {} if is_container else {path: child}
        chosen |= _down_to(child, path, depth if is_container else depth - 1)
    return chosen


def _beside_stacks(module: nn.Module, name: str) -> dict[str, nn.Module]:
    chosen: dict[str, nn.Module] = {}
    for path, child in _children(module, name):
        is_container = isinstance(child, _CONTAINERS)
        if is_container and _is_stack(child):
            chosen |= dict(_children(child, path))
        elif is_container or any(map(_is_stack, child.modules())):
            chosen |= _beside_stacks(child, path)
        else:
            chosen[path] = child
    return chosen


def _is_stack(module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    return sum(any(True for _ in child.children()) for child in module.children()) > 1
