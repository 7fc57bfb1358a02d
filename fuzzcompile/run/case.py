"""A case: a module, its inputs, and the way in which it is compiled and driven."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fuzzcompile.model.contract import COMPILE
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.run.tensors import is_plain

GradMode = Literal["no_grad", "inference_mode", "enabled"]


@dataclass(frozen=True)
class CompileSettings:
    """The arguments of ``torch.compile``, and the configuration patched around it.

    ``options`` go to ``torch.compile``; ``inductor``, ``dynamo`` and ``functorch`` patch torch's config modules.
    ``backend`` is a registered name or a callable of the user. ``path`` says what runs in the program's place (see
    :mod:`fuzzcompile.model.contract`): a program that is exported has no backend, mode or graph breaks.
    """

    backend: str | Callable[..., object] = "inductor"
    options: Mapping[str, object] = field(default_factory=dict)
    inductor: Mapping[str, object] = field(default_factory=dict)
    dynamo: Mapping[str, object] = field(default_factory=dict)
    functorch: Mapping[str, object] = field(default_factory=dict)
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    path: str = COMPILE

    @property
    def config_patches(self) -> dict[str, Mapping[str, object]]:
        """The entries patched in ``torch._<name>.config``, by that name; configs without any are left out."""
        patches = {"dynamo": self.dynamo, "functorch": self.functorch, "inductor": self.inductor}
        return {name: entries for name, entries in patches.items() if entries}

    @property
    def own_config(self) -> dict[str, object]:
        """The entries of Inductor's config that the case sets itself, in ``inductor`` or in ``options``."""
        return {**self.inductor, **self.options}


CompilePart: TypeAlias = Callable[[Callable[..., object], CompileSettings], Callable[..., object]]


class CompiledByParts:
    """A case's callable that is not compiled as a whole: it compiles parts of itself, each under its own settings."""

    def __call__(self) -> object:
        """Run it in eager mode."""
        raise NotImplementedError

    def compile_by_parts(self, compile_part: CompilePart) -> Callable[..., object]:
        """The callable with its parts compiled so."""
        raise NotImplementedError


@dataclass(frozen=True)
class Arguments:
    """The inputs of one call that takes positional and keyword arguments."""

    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


pytree.register_pytree_node(
    Arguments, lambda call: ([call.args, dict(call.kwargs)], None), lambda parts, _: Arguments(*parts)
)


class Reachable(Protocol):
    """Everything that a callable can reach; ``tensors`` by the name that a user knows them by."""

    tensors: dict[str, torch.Tensor]

    def plain_attributes(self) -> Mapping[str, object]:
        """Attributes that are whole numbers, flags, strings or None, by path."""

    def list_named(self) -> Sequence[tuple[str, object]]:
        """All objects but tensors, each with its path."""


class CapturedState(Protocol):
    """The state of a captured script that its callable can reach and change, inputs that are tensors excepted.

    A captured script runs in place: its closures, globals and objects stay the same, and their tensors are restored
    before every run.
    """

    def restore(self, device: torch.device, *, double: bool) -> None:
        """Restore everything to the moment before the first call, on ``device`` (and in float64)."""

    def enter(self, call: int) -> None:
        """Restore everything to the moment before a later call, counted from 0, with the arguments of ``restore``."""

    def reached(self) -> Reachable:
        """Return everything that the current call can reach now."""

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is part of this state, and no input of its own."""

    def originals(self) -> Sequence[torch.Tensor]:
        """The tensors' copies from the moment of capture, in their original dtypes."""


@dataclass(frozen=True)
class Case:
    """A loaded case file, or a call captured from a script."""

    name: str
    path: Path
    source: str
    # Builds fresh state at every call, so that no run sees the mutations of another.
    make: Callable[[], tuple[Callable[..., object], object]]
    grad: GradMode
    backward: bool
    settings: CompileSettings
    calls: Sequence[object] | None  # inputs of further calls
    # Calls the model in another way than ``model(*inputs)``.
    run: Callable[[Callable[..., object], object], object] | None
    ambient: Callable[[], AbstractContextManager[object]] = nullcontext  # entered around every run (autocast)
    modes: tuple[TorchFunctionMode, ...] = ()  # entered around every call, and nothing else
    reseed: Callable[[], None] | None = None  # sets the random state in which a run begins
    state: CapturedState | None = None  # is restored instead; ``make`` then returns the same objects every time
    notes: tuple[str, ...] = ()  # what a user should know about how the file was read

    @property
    def differentiates(self) -> bool:
        """Return whether a run records what a backward pass needs."""
        return self.backward or self.grad == "enabled"

    @property
    def sha256(self) -> str:
        """Identity of the case: the hash of its source."""
        return hash_source(self.source)


def keep_output(case: Case, number: int) -> Case:
    """The case with one of the values that its callable returns in a tuple, and None in place of each other one."""

    def make() -> tuple[Callable[..., object], object]:
        call, inputs = case.make()

        def call_for_one(*args: object, **kwargs: object) -> object:
            values = call(*args, **kwargs)
            assert isinstance(values, tuple)
            return tuple(value if place == number else None for place, value in enumerate(values))

        return call_for_one, inputs

    return replace(case, make=make)


def bound_inputs(case: Case) -> Case | None:
    """The case with inputs, parameters and buffers whose squares are finite; None if they are, infinities apart.

    That is a bound for dtypes of a wide range only: in float16, ordinary values are beyond it.
    """

    def make() -> tuple[Callable[..., object], object]:
        call, inputs = case.make()
        for tensor in filter(_is_large, _list_held(call, inputs)):
            with suppress(RuntimeError):  # one whose elements share memory stays as it is
                tensor.detach().copy_(_bound(tensor.detach()))
        return call, inputs

    return replace(case, make=make) if any(map(_is_large, _list_held(*case.make()))) else None


# The range of float32 and of what shares its exponent has room for the squares of ordinary values; float16 has not.
_WIDE_RANGE = torch.finfo(torch.bfloat16).max


def _list_held(call: object, inputs: object) -> list[torch.Tensor]:
    held = list(call.state_dict(keep_vars=True).values()) if isinstance(call, torch.nn.Module) else []
    tensors = [leaf for leaf in (*held, *pytree.tree_leaves(inputs)) if is_plain(leaf)]
    return [each for each in tensors if each.is_floating_point() and torch.finfo(each.dtype).max >= _WIDE_RANGE]


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and bool(
        (tensor != _bound(tensor.detach())).logical_and(tensor.isfinite()).any()
    )


def _bound(tensor: torch.Tensor) -> torch.Tensor:
    limit = math.sqrt(torch.finfo(tensor.dtype).max)
    return torch.where(tensor.isfinite(), tensor.clamp(-limit, limit), tensor)
