"""``--ops``: every operator that a program calls, in the place of its layers.

An operator is a call that torch's function overrides see: ``torch.nn.functional.linear``, ``Tensor.add``. Both sides of
a comparison make the same ones in the same order, unless a compiler fuses them; below, at ATen's level, one kernel of
attention makes other calls than the next.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.kept import KeptCall, KeptTensor
from fuzzcompile.analyses.profile.layers import roots_of
from fuzzcompile.analyses.profile.taps import Keep, leaves
from fuzzcompile.run.building import Program

Operator = Callable[..., object]


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator as it begins: ``name`` says where, and ``number`` which of that name it is."""

    name: str
    number: int
    function: Operator
    args: tuple[object, ...]
    kwargs: dict[str, object]

    @property
    def kind(self) -> str:
        """The operator, without its place."""
        return self.name.rpartition(": ")[2]


class Watcher(Protocol):
    """What is told of every call: of its beginning and of what it returned."""

    def entered(self, call: OperatorCall) -> object:
        """Take what is needed of the arguments before they are written to."""

    def left(self, call: OperatorCall, entered: Any, result: object) -> None:
        """Take the result; ``entered`` is what :meth:`entered` returned."""


@dataclass(frozen=True)
class Collector:
    """Hands each call of an operator to ``add`` as it ends; nothing but what ``keep`` keeps outlives it."""

    keep: Keep
    add: Callable[[KeptCall], None]

    def entered(self, call: OperatorCall) -> list[KeptTensor]:
        """Keep the tensors among the arguments."""
        return [self.keep(tensor) for tensor in leaves((call.args, call.kwargs))]

    def left(self, call: OperatorCall, entered: list[KeptTensor], result: object) -> None:
        """Hand over the call with what it returned."""
        self.add(KeptCall(call.name, call.number, call.kind, entered, [self.keep(tensor) for tensor in leaves(result)]))


@contextlib.contextmanager
def operators_watched(program: Program, watcher: Watcher) -> Iterator[Callable[..., object]]:
    """Tell ``watcher`` of every operator that the program calls in the block and that takes and returns tensors.

    The modules of the program give the operators their places.

    Yields:
        What to call in the place of the program's callable.
    """
    places: list[str] = []
    handles = []
    for root_name, root in roots_of(program).items():
        for name, module in root.named_modules(prefix=root_name):
            handles += [
                module.register_forward_pre_hook(functools.partial(_enter, places, name)),
                module.register_forward_hook(functools.partial(_leave, places), always_call=True),
            ]

    def called(*args: object, **kwargs: object) -> object:
        places.append("")
        try:
            return program.model(*args, **kwargs)
        finally:
            places.pop()

    try:
        with _Operators(places, watcher):
            yield called
    finally:
        for handle in handles:
            handle.remove()


def _enter(places: list[str], name: str, module: nn.Module, args: object) -> None:
    places.append(name)


def _leave(places: list[str], module: nn.Module, args: object, result: object) -> None:
    places.pop()


class _Operators(TorchFunctionMode):
    """Sees calls from Python; inside torch's own Python functions it is off, so that one call is one operator."""

    def __init__(self, places: Sequence[str], watcher: Watcher) -> None:
        super().__init__()
        self._places, self._watcher = places, watcher
        self._count: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Operator,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run ``func``, and tell of it if the program calls it."""
        given = dict(kwargs or {})
        label = _label(func)
        if label is None or not self._places or not leaves((args, given)):
            return func(*args, **given)
        place = self._places[-1]
        name = f"{place}: {label}" if place else label
        call = OperatorCall(name, self._count[name], func, args, given)
        with _disable_current_modes():
            entered = self._watcher.entered(call)
        result = func(*args, **given)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves(result)):
            self._count[name] += 1
            with _disable_current_modes():
                self._watcher.left(call, entered, result)
        return result


def _label(function: Operator) -> str | None:
    """The operator's name; None for access to an attribute of a tensor, which computes nothing."""
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):
        return None
    full = resolve_name(function) or name
    return full.removeprefix("torch.").removeprefix("nn.functional.") or None
