"""The calls that a script makes of its compiled callables: the arguments of each, and the state before it.

A case is one call, after the earlier calls of the same callable with inputs of another kind (shape, stride, dtype),
because recompiles depend on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.capture.world import World
from fuzzcompile.case import Arguments
from fuzzcompile.execution.building import placed_input
from fuzzcompile.execution.holders import is_holder, is_model, named_arguments
from fuzzcompile.execution.reachable import Reached
from fuzzcompile.execution.tensors import StorageCopier, storages
from fuzzcompile.execution.trees import unwrapped

_MAX_HISTORY = 8
# What the states before earlier calls may take beyond what they share with the last; older ones are dropped.
_MAX_BYTES = 2**30
Kind = Sequence[object]


@dataclass(frozen=True)
class RecordedCall:
    """One call as the script makes it; ``kind`` is what a recompile depends on."""

    target: Callable[..., object]
    kind: Kind
    arguments: Arguments
    world: World


@dataclass
class History:
    """The calls of one compiled callable, the first of each kind of inputs and state.

    ``dropped`` says whether calls were left out because their state takes too much memory.
    """

    calls: deque[RecordedCall] = field(default_factory=lambda: deque(maxlen=_MAX_HISTORY))
    dropped: bool = False

    def add(self, target: Callable[..., object], arguments: Arguments) -> None:
        """Keep a call, unless one of its kind is kept already."""
        kind = kind_of(arguments)
        if any(known.kind == kind and known.target == target for known in self.calls):
            return
        self.calls.append(self._recorded(target, kind, arguments))
        while _bytes(self.calls) - _bytes([self.calls[-1]]) > _MAX_BYTES:
            self.calls.popleft()
            self.dropped = True

    def until(self, target: Callable[..., object], arguments: Arguments) -> list[RecordedCall]:
        """A call, after the earlier ones of other kinds."""
        kind = kind_of(arguments)
        earlier = [call for call in self.calls if call.target == target and call.kind != kind]
        return [*earlier, self._recorded(target, kind, arguments)][-_MAX_HISTORY:]

    def _recorded(self, target: Callable[..., object], kind: Kind, arguments: Arguments) -> RecordedCall:
        # Copies of what has not changed since the last call are shared with it.
        known = self.calls[-1].world.known if self.calls else None
        world = World(roots_of_call(target, arguments), known)
        return RecordedCall(target, kind, _copied(arguments, world), world)


def kind_of(arguments: Arguments) -> Kind:
    """Return the key of a recompile: shapes, strides and dtypes of the inputs and of tensors held by objects."""
    inner = (pair for name, leaf in named_arguments(arguments) for pair in unwrapped(name, leaf))
    return [part for name, leaf in inner for part in _kinds(name, leaf)]


def _kinds(name: str, leaf: object) -> list[object]:
    if isinstance(leaf, torch.Tensor):
        return [name, _form(leaf)]
    if not is_holder(leaf):
        return [name, repr(leaf)[:100]]
    if is_model(leaf):
        return [name, id(leaf)]
    reached = Reached({name: leaf}, functions=False)
    return [*((held, _form(tensor)) for held, tensor in reached.tensors.items()), reached.plain_attributes()]


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.layout == torch.strided and tensor.stride()


def roots_of_call(target: Callable[..., object], arguments: Arguments) -> dict[str, object]:
    """The callable, and the arguments that are not tensors: they may hold state."""
    named = {name: leaf for name, leaf in named_arguments(arguments) if not isinstance(leaf, torch.Tensor)}
    return {"": target, **named}


def _copied(arguments: Arguments, world: World) -> Arguments:
    """The arguments as they are now; tensors that belong to the callable's state stay themselves."""
    copier = StorageCopier()

    def copy(leaf: object) -> object:
        return placed_input(leaf, copier) if isinstance(leaf, torch.Tensor) and not world.owns(leaf) else leaf

    copied: Arguments = pytree.tree_map(copy, arguments)
    return copied


def _bytes(calls: Sequence[RecordedCall]) -> int:
    return sum(storages([copy for call in calls for copy in call.world.originals()]).values())
