"""What a captured callable can reach and change: found once, set back before every run.

A script's callable may close over modules, optimizers, lists and counters, or read them as globals. Copying all
that would break the identities that the program relies on (an optimizer's parameters, a registered operator), so
it is left where it is: the contents of every container and the values of every tensor are kept at the moment of
capture and written back.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuzzcompile.execution.tensors import StorageCopier

# More objects than this are no program's state; what lies beyond is left alone.
_MAX_OBJECTS = 200_000
_SHARED_FOLDERS = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class _Kept:
    tensor: torch.Tensor
    copy: torch.Tensor
    gradient: torch.Tensor | None
    requires_grad: bool


class World:
    """The state that ``roots`` reach; implements :class:`fuzzcompile.case.State`.

    Tensors are named by their path from a root: ``parameter layers.0.weight`` below a module that is a root itself
    (the root with the empty name), ``parameter model.weight`` below one that the root closes over.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._undo: list[Callable[[], object]] = []
        self._seen: dict[int, Any] = {}
        for name, root in roots.items():
            self._walk(root, name)
        copier = StorageCopier()
        self._kept = [_keep(tensor, copier) for tensor in self._tensors.values()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name, in the order in which they were found."""
        return dict(self._tensors)

    def originals(self) -> list[torch.Tensor]:
        """Copies from the moment of capture, in the same order."""
        return [kept.copy for kept in self._kept]

    def restore(self, device: torch.device, *, double: bool) -> None:
        """Set everything back to the moment of capture, on ``device`` (floating tensors in float64)."""
        for undo in self._undo:
            undo()
        copier = StorageCopier(double=double, device=device)
        for kept in self._kept:
            kept.tensor.grad = None  # before the data: a gradient must have its tensor's dtype
            with contextlib.suppress(RuntimeError):  # inference tensors and subclasses keep what they have
                kept.tensor.data = copier(kept.copy).detach()
                kept.tensor.grad = None if kept.gradient is None else copier(kept.gradient).detach()
            if kept.tensor.is_leaf and kept.tensor.requires_grad != kept.requires_grad:
                kept.tensor.requires_grad_(kept.requires_grad)

    # -- finding ----------------------------------------------------------------------------------

    def _walk(self, start: Any, name: str) -> None:
        pending = [(start, name)]
        while pending and len(self._seen) < _MAX_OBJECTS:
            value, path = pending.pop()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value  # held, so that its id stays its own
            if isinstance(value, torch.Tensor):
                self._found(value, path)
                continue
            undo = _undo_for(value)
            if undo is not None:
                self._undo.append(undo)
            pending += reversed([(child, _joined(path, key)) for key, child in _children(value)])

    def _found(self, tensor: torch.Tensor, path: str) -> None:
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        name, number = f"{kind} {path}", 2
        while name in self._tensors:
            name, number = f"{kind} {path} ({number})", number + 1
        self._tensors[name] = tensor


_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, types.ModuleType)


def _keep(tensor: torch.Tensor, copier: StorageCopier) -> _Kept:
    gradient = tensor.grad if tensor.is_leaf else None
    copied = None if gradient is None else copier(gradient).detach()
    return _Kept(tensor, copier(tensor).detach(), copied, tensor.requires_grad)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key else path or key


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by the name that its user would give it."""
    if isinstance(value, nn.Module):
        # A parameter's path is that of named_parameters(), without _parameters and _modules in it.
        own = {**value._parameters, **value._buffers, **value._modules}
        yield from own.items()
        yield from ((key, child) for key, child in vars(value).items() if key not in _MODULE_TABLES)
        yield from _class_functions(type(value))
    elif isinstance(value, types.FunctionType):
        yield from _function_children(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield "", list(value.args)
        yield "", dict(value.keywords)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield key if isinstance(key, str) else "", child
            yield "", key
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(index), child) for index, child in enumerate(value))
    elif not isinstance(value, type) and _is_of_user(type(value)):
        yield from _attributes(value)
        yield from _class_functions(type(value))
    elif isinstance(value, torch.optim.Optimizer):
        yield from vars(value).items()


_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def _class_functions(owner: type) -> Iterator[tuple[str, Any]]:
    """The methods of a user's class: they may read globals."""
    for base in owner.__mro__:
        if _is_of_user(base):
            yield from (("", value) for value in vars(base).values() if isinstance(value, types.FunctionType))


def _function_children(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
    yield "", list(function.__defaults__ or ())
    yield "", dict(function.__kwdefaults__ or {})
    if _is_user_file(function.__code__.co_filename):
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    names = list(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    for name in names:
        with contextlib.suppress(AttributeError):
            yield name, object.__getattribute__(value, name)


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _is_of_user(owner: type) -> bool:
    module = sys.modules.get(owner.__module__)
    return module is not None and _is_user_file(getattr(module, "__file__", None) or "")


def _is_user_file(filename: str) -> bool:
    """Whether code of this file is neither installed nor part of Python."""
    installed = any(f"/{folder}/" in filename for folder in _SHARED_FOLDERS)
    return not installed and filename.endswith(".py") and not filename.startswith((sys.base_prefix, _OWN_FOLDER))


_OWN_FOLDER = __file__.rsplit("/", 2)[0] + "/"


# -- setting back -------------------------------------------------------------------------------------


def _undo_for(value: Any) -> Callable[[], object] | None:
    """How to set an object's own contents back; None for one that has none."""
    if isinstance(value, nn.Module) or (not isinstance(value, type) and _is_of_user(type(value))):
        return _undo_attributes(value)
    if isinstance(value, torch.optim.Optimizer):
        return _undo_attributes(value)
    if isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, types.FunctionType):
        return _undo_function(value)
    if isinstance(value, list):
        return functools.partial(value.__setitem__, slice(None), list(value))
    if isinstance(value, dict):
        return _undo_dict(value)
    if isinstance(value, set):
        return _undo_set(value)
    return None


def _undo_attributes(value: Any) -> Callable[[], None] | None:
    contents = getattr(value, "__dict__", None)
    undos = [] if contents is None else [_undo_dict(contents)]
    if isinstance(value, nn.Module):
        undos += [_undo_dict(vars(value)[table]) for table in _MODULE_TABLES]

    def undo() -> None:
        for step in undos:
            step()

    return undo


def _undo_set(members: set[Any]) -> Callable[[], None]:
    kept = set(members)

    def undo() -> None:
        members.clear()
        members.update(kept)

    return undo


def _undo_dict(contents: dict[Any, Any]) -> Callable[[], None]:
    kept = dict(contents)

    def undo() -> None:
        for key in [key for key in contents if key not in kept]:
            del contents[key]
        contents.update(kept)

    return undo


def _undo_function(function: types.FunctionType) -> Callable[[], None]:
    """Closure cells and the globals that the function names (those that it may rebind)."""
    cells = [(cell, cell.cell_contents) for cell in function.__closure__ or () if not _is_empty(cell)]
    names = set(_global_names(function.__code__)) if _is_user_file(function.__code__.co_filename) else set()
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
