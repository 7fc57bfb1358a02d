"""Surroundings of a program's calls of torch: transforms, levels of forward mode with tangents, modes of its own.

A tangent lives as long as its level (`torch.autograd.forward_ad.dual_level`), a copy of an input as long as the case:
tangents are kept beside copies, and put on them again for a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import overrides
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

T = TypeVar("T")
_KEPT = "_tangent_of_input"


def is_level_entered() -> bool:
    """Return whether tangents exist now."""
    return forward_ad._current_level >= 0


@contextlib.contextmanager
def enter_level() -> Iterator[None]:
    """Enter a level in which tangents exist, unless one is entered: levels do not nest."""
    with contextlib.nullcontext() if is_level_entered() else forward_ad.dual_level():
        yield


def read_tangent(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tangent of a tensor, or the one that is kept beside a copy; None if it has none."""
    kept: torch.Tensor | None = vars(tensor).get(_KEPT)
    if kept is not None or not is_level_entered():
        return kept
    tangent: torch.Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return tangent


def keep_tangent(made: torch.Tensor, of: torch.Tensor, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Keep a copy of the tangent of ``of`` beside ``made``, the copy of ``of``."""
    if (tangent := read_tangent(of)) is not None:
        setattr(made, _KEPT, copy(tangent))


def put_tangents(arguments: T) -> T:
    """The inputs of a call, each that a tangent is kept beside as a dual tensor of the same memory."""
    if not is_level_entered():
        return arguments

    def dualize(tensor: torch.Tensor) -> torch.Tensor:
        kept = vars(tensor).get(_KEPT)
        return tensor if kept is None else forward_ad.make_dual(tensor, kept)  # type: ignore[no-untyped-call]

    made: T = pytree.tree_map_only(torch.Tensor, dualize, arguments)
    return made


@contextlib.contextmanager
def leave_transforms() -> Iterator[None]:
    """Leave what is entered in the block and not left: vmap and grad of a graph, a level of tangents.

    Else the next program raises that levels do not nest.
    """
    functorch: Any = getattr(torch._C, "_functorch", None)
    stack: Callable[[], Sequence[object] | None] = getattr(functorch, "get_interpreter_stack", list)
    before, entered = len(stack() or ()), _refuses_level()
    try:
        yield
    finally:
        while len(stack() or ()) > before:
            functorch.pop_dynamic_layer_stack()
        if not entered and is_level_entered():
            forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]
        if not entered and _refuses_level():
            torch._C._exit_dual_level(level=0)


def _refuses_level() -> bool:
    """Return whether a level is entered; a graph of dynamo's enters it past `forward_ad`, which does not know of it."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:  # levels do not nest
        return True
    torch._C._exit_dual_level(level=level)
    return False


# Modes of a script's own, which see each of its calls of torch's functions; a default device is one of torch's.


def list_function_modes() -> tuple[TorchFunctionMode, ...]:
    """The modes that are entered, the outermost first."""
    return tuple(mode for mode in _read_stack() if not isinstance(mode, DeviceContext))


@contextlib.contextmanager
def leave_function_modes() -> Iterator[None]:
    """Leave them in the block: what is done there with tensors is none of the script's calls."""
    entered = _read_stack()
    with _put_modes((), entered), _put_modes([mode for mode in entered if isinstance(mode, DeviceContext)], ()):
        yield


def enter_function_modes(modes: Sequence[TorchFunctionMode]) -> contextlib.AbstractContextManager[None]:
    """Enter modes in a block, without what they do themselves where they are entered and left."""
    return _put_modes(modes, ())


def _read_stack() -> Sequence[TorchFunctionMode]:
    stack: Sequence[TorchFunctionMode] = overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return stack


@contextlib.contextmanager
def _put_modes(put: Sequence[TorchFunctionMode], taken: Sequence[TorchFunctionMode]) -> Iterator[None]:
    """Take modes off the stack and put others on it; the other way round after the block."""
    for _ in taken:
        overrides._pop_mode()  # type: ignore[no-untyped-call]
    for mode in put:
        overrides._push_mode(mode)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for _ in put:
            overrides._pop_mode()  # type: ignore[no-untyped-call]
        for mode in taken:
            overrides._push_mode(mode)  # type: ignore[no-untyped-call]
