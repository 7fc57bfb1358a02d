"""The state that a captured callable can reach and change, restored before every run.

A script's callable may close over modules, optimizers, lists and counters, or read them as globals. Copies of these
would break the identities that the program relies on (an optimizer's parameters, a registered operator). They stay
where they are: the contents of every container and the values of every tensor are saved at the moment of capture and
written back.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import random
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy
import torch
from torch import nn

from fuzzcompile.execution.reachable import MODULE_TABLES, Reached, global_names, is_of_user, is_user_file
from fuzzcompile.execution.tensors import StorageCopier


@dataclass(frozen=True)
class _Kept:
    tensor: torch.Tensor
    copy: torch.Tensor
    gradient: torch.Tensor | None
    requires_grad: bool


class World:
    """The state that ``roots`` reach; implements :class:`fuzzcompile.case.State`."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._roots = dict(roots)
        reached = Reached(roots)
        undos = (_undo_for(value) for value in reached.objects)
        self._undo = [undo for undo in undos if undo is not None]
        copier = StorageCopier()
        self._kept = [_keep(tensor, copier) for tensor in reached.tensors.values()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors reachable now, by name; a program may have replaced some since the capture."""
        return Reached(self._roots).tensors

    def originals(self) -> list[torch.Tensor]:
        """Copies from the moment of capture."""
        return [kept.copy for kept in self._kept]

    def restore(self, device: torch.device, *, double: bool) -> None:
        """Restore the moment of capture on ``device``; with ``double``, floating tensors in float64."""
        for undo in self._undo:
            undo()
        copier = StorageCopier(double=double, device=device)
        for kept in self._kept:
            kept.tensor.grad = None  # before the data: a gradient must have its tensor's dtype
            with contextlib.suppress(RuntimeError):  # inference tensors and subclasses keep their values
                kept.tensor.data = copier(kept.copy).detach()
                kept.tensor.grad = None if kept.gradient is None else copier(kept.gradient).detach()
            if kept.tensor.is_leaf and kept.tensor.requires_grad != kept.requires_grad:
                kept.tensor.requires_grad_(kept.requires_grad)


def _keep(tensor: torch.Tensor, copier: StorageCopier) -> _Kept:
    gradient = tensor.grad if tensor.is_leaf else None
    copied = None if gradient is None else copier(gradient).detach()
    return _Kept(tensor, copier(tensor).detach(), copied, tensor.requires_grad)


# -- restoring -------------------------------------------------------------------------------------


def _undo_for(value: object) -> Callable[[], object] | None:
    """How to restore an object's own contents; None if it has none."""
    of_user = not isinstance(value, type) and is_of_user(type(value))
    if of_user or isinstance(value, nn.Module | torch.optim.Optimizer):
        return _undo_attributes(value)
    if isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, numpy.random.Generator):
        return _undo_numpy(value)
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, types.FunctionType):
        return _undo_function(value)
    if isinstance(value, types.SimpleNamespace):
        return _undo_dict(vars(value))
    if isinstance(value, type):
        return _undo_class(value) if is_of_user(value) else None
    if isinstance(value, numpy.ndarray):
        return functools.partial(numpy.copyto, value, value.copy())
    if isinstance(value, list | bytearray):
        return functools.partial(value.__setitem__, slice(None), value[:])
    if isinstance(value, dict):
        return _undo_dict(value)
    if isinstance(value, collections.deque | set):
        return _undo_refilled(value)
    return None


def _undo_attributes(value: object) -> Callable[[], None] | None:
    contents = getattr(value, "__dict__", None)
    undos = [] if contents is None else [_undo_dict(contents)]
    if isinstance(value, nn.Module):
        undos += [_undo_dict(vars(value)[table]) for table in MODULE_TABLES]

    def undo() -> None:
        for step in undos:
            step()

    return undo


def _undo_refilled(members: collections.deque[object] | set[object]) -> Callable[[], None]:
    """Empty the container and fill it again."""
    kept = list(members)
    refill: Callable[[list[object]], None] = members.update if isinstance(members, set) else members.extend

    def undo() -> None:
        members.clear()
        refill(kept)

    return undo


def _undo_numpy(generator: numpy.random.Generator) -> Callable[[], None]:
    kept = copy.deepcopy(generator.bit_generator.state)

    def undo() -> None:
        generator.bit_generator.state = copy.deepcopy(kept)

    return undo


def _undo_class(owner: type) -> Callable[[], None]:
    """Restore the plain attributes of a user's class, such as counters."""
    kept = {k: v for k, v in vars(owner).items() if isinstance(v, _PLAIN) and not k.startswith("__")}

    def undo() -> None:
        for name, value in kept.items():
            setattr(owner, name, value)

    return undo


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None), torch.Tensor)


def _undo_dict(contents: dict[_Key, _Value]) -> Callable[[], None]:
    kept = dict(contents)

    def undo() -> None:
        for key in [key for key in contents if key not in kept]:
            del contents[key]
        contents.update(kept)

    return undo


def _undo_function(function: types.FunctionType) -> Callable[[], None]:
    """Restore closure cells and the globals that the function names, which it may rebind."""
    cells = [(cell, cell.cell_contents) for cell in function.__closure__ or () if not _is_empty(cell)]
    names = set(global_names(function.__code__)) if is_user_file(function.__code__.co_filename) else set()
    bound = {name: function.__globals__[name] for name in names if name in function.__globals__}

    def undo() -> None:
        for cell, contents in cells:
            cell.cell_contents = contents
        function.__globals__.update(bound)

    return undo


def _is_empty(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False
