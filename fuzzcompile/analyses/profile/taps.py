"""Taps: hooks that hand over what goes into each layer and what comes out of it.

:func:`tapped` serves compiled runs: dynamo traces its hooks with the model, so that what they keep becomes outputs of
the compiled graph. They therefore use nothing but lists, tuples and dicts. :func:`streamed` serves eager runs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from fuzzcompile.run.case_program import CaseProgram
from fuzzcompile.run.reachable_state import ReachedObjects

# What is kept of a run: the inputs and outputs of each call of a layer, whole or sampled.

# Seeds the choice of elements, so that two machines sample the same.
_SEED = 14
# Elements of a tensor for which there is no room.
SAMPLE = 4096


@dataclass(frozen=True)
class KeptTensor:
    """A tensor of a run, on the CPU.

    Attributes:
        values: the whole tensor in its shape, or 1-D: its elements at :func:`positions`.
        shape: its shape in the run.
        dtype: its dtype in the run; ``values`` have the same.
        whole: whether all elements were kept.
    """

    values: torch.Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    whole: bool = True

    @classmethod
    def of(cls, tensor: torch.Tensor, most: int | None = None) -> KeptTensor:
        """Keep a copy of ``tensor``, of at most ``most`` elements (None: of all)."""
        detached = tensor.detach()
        shape, count = tuple(detached.shape), detached.numel()
        if most is None or count <= most:
            return cls(detached.to("cpu", copy=True), shape, detached.dtype)
        chosen = positions(count, most).to(detached.device)
        return cls(detached.reshape(-1)[chosen].cpu(), shape, detached.dtype, whole=False)

    @classmethod
    def view(cls, tensor: torch.Tensor) -> KeptTensor:
        """The whole of ``tensor`` without a copy, where it does not change any more."""
        return cls(tensor.detach(), tuple(tensor.shape), tensor.dtype)

    def beside(self, other: KeptTensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The elements of both that correspond, on the CPU; None if both are samples of different sizes.

        Both have one shape in their runs.
        """
        if self.whole and other.whole:
            return self.values.cpu(), other.values.cpu()
        if self.whole or other.whole:
            count = (other if self.whole else self).values.numel()
            first, second = (kept._sample(count) if kept.whole else kept.values for kept in (self, other))
            return first, second
        return (self.values, other.values) if self.values.shape == other.values.shape else None

    def _sample(self, count: int) -> torch.Tensor:
        return self.values.reshape(-1)[positions(self.values.numel(), count).to(self.values.device)].cpu()


class Keeping:
    """Keeps the tensors of one run: whole while ``budget`` bytes last, then :data:`SAMPLE` elements of each.

    A tensor that leaves one layer and enters the next is kept once: it has the bits of the one kept last in its shape.
    """

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._last: dict[tuple[torch.dtype, tuple[int, ...]], KeptTensor] = {}

    def __call__(self, tensor: torch.Tensor) -> KeptTensor:
        """Keep ``tensor``; a parameter on the CPU, which a run does not change, is not copied."""
        if isinstance(tensor, nn.Parameter) and tensor.device.type == "cpu":
            return KeptTensor(tensor.detach(), tuple(tensor.shape), tensor.dtype)
        key = tensor.dtype, tuple(tensor.shape)
        last = self._last.get(key)
        if last is not None and last.whole and torch.equal(last.values, tensor.detach().to(last.values.device)):
            return last
        size = tensor.numel() * tensor.element_size()
        kept = KeptTensor.of(tensor, None if size <= self._left else SAMPLE)
        self._left -= kept.values.nbytes
        self._last[key] = kept
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


T = TypeVar("T")
Keep = Callable[[torch.Tensor], KeptTensor]
Event = tuple[str, Literal["in", "out"], list[torch.Tensor]]


def leaves(value: object) -> list[torch.Tensor]:
    """The tensors in a tree of tuples, lists, dicts and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    collected: list[torch.Tensor] = []
    for part in _parts(value):
        collected += leaves(part)
    return collected


def _parts(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    names = getattr(type(value), "__dataclass_fields__", {})  # dynamo does not trace dataclasses.fields()
    return [getattr(value, name) for name in names]


def filled(value: T, tensors: Iterator[torch.Tensor]) -> T:
    """The tree ``value`` with its tensors replaced, in the order of :func:`leaves`."""
    made: object = value
    if isinstance(value, torch.Tensor):
        made = next(tensors)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        made = type(value)(*(filled(part, tensors) for part in value))
    elif isinstance(value, list | tuple):
        made = type(value)(filled(part, tensors) for part in value)
    elif isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: filled(part, tensors) for key, part in value.items()})
    elif dataclasses.is_dataclass(value):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, filled(getattr(value, field.name), tensors))
    return made  # type: ignore[return-value]


@contextlib.contextmanager
def tapped(layers: Mapping[str, nn.Module], events: list[Event]) -> Iterator[None]:
    """Append copies of the inputs and outputs of every call of ``layers`` to ``events``, also where dynamo traces them.

    Copies, because a program may write to its activations later on.
    """
    handles = []
    for name, module in layers.items():
        handles.append(module.register_forward_pre_hook(_entering(name, events), with_kwargs=True))
        handles.append(module.register_forward_hook(_leaving(name, events)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(name: str, events: list[Event]) -> Callable[..., None]:
    def enter(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        events.append((name, "in", [tensor.detach().clone() for tensor in leaves((args, kwargs))]))

    return enter


def _leaving(name: str, events: list[Event]) -> Callable[..., None]:
    def leave(module: nn.Module, args: tuple[object, ...], result: object) -> None:
        events.append((name, "out", [tensor.detach().clone() for tensor in leaves(result)]))

    return leave


def calls_in(events: list[Event], kinds: Mapping[str, str], keep: Keep) -> list[KeptCall]:
    """The calls that ``events`` tell of, in the order in which they ended; ``events`` is emptied."""
    pending: dict[str, list[list[KeptTensor]]] = {}
    count: Counter[str] = Counter()
    calls: list[KeptCall] = []
    for name, direction, tensors in events:
        kept = [keep(tensor) for tensor in tensors]
        if direction == "in":
            pending.setdefault(name, []).append(kept)
        elif pending.get(name):
            calls.append(KeptCall(name, count[name], kinds[name], pending[name].pop(), kept))
            count[name] += 1
    events.clear()
    return calls


@contextlib.contextmanager
def streamed(
    layers: Mapping[str, nn.Module],
    keep: Keep,
    add: Callable[[KeptCall], None],
) -> Iterator[None]:
    """Hand each call of ``layers`` to ``add`` as it ends, in an eager run; only what ``keep`` keeps outlives it."""
    pending: dict[str, list[list[KeptTensor]]] = {}
    count: Counter[str] = Counter()

    def watched(name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        def enter(_module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            with _disable_current_modes():
                pending.setdefault(name, []).append([keep(tensor) for tensor in leaves((args, kwargs))])

        def leave(_module: nn.Module, _args: tuple[object, ...], result: object) -> None:
            with _disable_current_modes():
                kept = [keep(tensor) for tensor in leaves(result)]
                add(KeptCall(name, count[name], type(module).__name__, pending[name].pop(), kept))
            count[name] += 1

        yield module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
        yield module.register_forward_hook(leave)

    handles = [handle for name, module in layers.items() for handle in watched(name, module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# Which modules of a model are its layers.

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def find_layers(program: CaseProgram, depth: int | None) -> dict[str, nn.Module]:
    """The modules to watch, by qualified name, outermost first.

    Args:
        program: what is run.
        depth: levels of the module tree, lists of modules not counted: 1 is the children of the root, 0 none. By
            default, the elements of each list of modules that holds a stack, and whatever stands beside such lists.
    """
    chosen: dict[str, nn.Module] = {}
    for name, root in find_roots(program).items():
        if depth is None:
            chosen |= _beside_stacks(root, name)
        else:
            chosen |= _down_to(root, name, depth)
    return chosen


def find_roots(program: CaseProgram) -> Mapping[str, nn.Module]:
    """The outermost modules that the program reaches, by name; a program that is a module has one, named ``""``."""
    if isinstance(program.model, nn.Module):
        return {"": program.model}
    reached = [value for value in ReachedObjects({"": program.model}).objects if isinstance(value, nn.Module)]
    inner = {id(child) for module in reached for child in module.modules() if child is not module}
    outer = [module for module in reached if id(module) not in inner]
    return {_root_name(module, index, len(outer)): module for index, module in enumerate(outer)}


def _root_name(module: nn.Module, index: int, count: int) -> str:
    return "" if count == 1 else f"{type(module).__name__.lower()}{index}"


def _down_to(module: nn.Module, name: str, depth: int) -> dict[str, nn.Module]:
    if depth == 0:
        return {}
    chosen: dict[str, nn.Module] = {}
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        if isinstance(child, _CONTAINERS):
            chosen |= _down_to(child, path, depth)
        else:
            chosen[path] = child
            chosen |= _down_to(child, path, depth - 1)
    return chosen


def _beside_stacks(module: nn.Module, name: str) -> dict[str, nn.Module]:
    chosen: dict[str, nn.Module] = {}
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        if _is_stack(child) and isinstance(child, _CONTAINERS):
            chosen |= {f"{path}.{key}": element for key, element in child.named_children()}
        elif isinstance(child, _CONTAINERS) or _holds_stack(child):
            chosen |= _beside_stacks(child, path)
        else:
            chosen[path] = child
    return chosen


def _holds_stack(module: nn.Module) -> bool:
    return any(_is_stack(inner) for inner in module.modules())


def _is_stack(module: nn.Module) -> bool:
    """Return whether it lists blocks: two modules or more with parts of their own."""
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    return sum(any(True for _ in child.children()) for child in module.children()) > 1
