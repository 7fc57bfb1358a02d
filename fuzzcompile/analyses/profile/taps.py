"""Taps: hooks that hand over what goes into each layer and what comes out of it.

:func:`tapped` serves compiled runs: dynamo traces its hooks with the model, so that what they keep becomes outputs of
the compiled graph. They therefore use nothing but lists, tuples and dicts. :func:`streamed` serves eager runs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from fuzzcompile.analyses.profile.kept import KeptCall, KeptTensor

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
