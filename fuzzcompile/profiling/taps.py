"""Taps: hooks that hand over what goes into each layer and what comes out, eager or traced by dynamo.

Dynamo traces the hooks with the model, so that what they keep becomes outputs of the compiled graph. They therefore use
nothing but lists, tuples and dicts.
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

from fuzzcompile.profiling.kept import KeptCall, KeptTensor

T = TypeVar("T")
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
    """Append copies of the inputs and outputs of every call of ``layers`` to ``events``, as they happen.

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


def calls_in(events: list[Event], kinds: Mapping[str, str]) -> list[KeptCall]:
    """The calls that ``events`` tell of, in the order in which they ended; ``events`` is emptied.

    A tensor that leaves one layer and enters the next is kept once.
    """
    pending: dict[str, list[list[KeptTensor]]] = {}
    count: Counter[str] = Counter()
    calls: list[KeptCall] = []
    share = _Sharing()
    for name, direction, tensors in events:
        kept = [share(tensor) for tensor in tensors]
        if direction == "in":
            pending.setdefault(name, []).append(kept)
        elif pending.get(name):
            calls.append(KeptCall(name, count[name], kinds[name], pending[name].pop(), kept))
            count[name] += 1
    events.clear()
    return calls


class _Sharing:
    """Keeps a tensor once if the one kept before it, in the same shape, has the same bits."""

    def __init__(self) -> None:
        self._last: dict[tuple[torch.dtype, tuple[int, ...]], KeptTensor] = {}

    def __call__(self, tensor: torch.Tensor) -> KeptTensor:
        key = tensor.dtype, tuple(tensor.shape)
        last = self._last.get(key)
        if last is None or not torch.equal(last.values, tensor.cpu()):
            last = self._last[key] = KeptTensor(tensor.cpu(), tuple(tensor.shape), tensor.dtype)
        return last
