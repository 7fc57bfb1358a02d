"""Restore what an object holds: attributes, items, closure cells, the state of a random generator."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import random
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn

from fuzzcompile.execution.reachable import (
    MODULE_TABLES,
    attributes,
    global_names,
    holds_state,
    is_of_user,
    is_user_file,
    own_dict,
    slots,
)

Undo = Callable[[], object]
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None), torch.Tensor)


def undo_for(value: object) -> Undo | None:
    """A function that gives an object what it holds now; None if it holds nothing that can be restored."""
    undos = [undo for undo in (_undo_items(value), _undo_attributes(value)) if undo is not None]
    return functools.partial(_in_order, undos) if len(undos) > 1 else next(iter(undos), None)


def _in_order(undos: list[Undo]) -> None:
    for undo in undos:
        undo()


def _undo_attributes(value: object) -> Undo | None:
    if isinstance(value, type):
        return _undo_class(value) if is_of_user(value) else None
    if not holds_state(value):
        return None
    undos: list[Undo] = [_undo_dict(own_dict(value))]
    if isinstance(value, nn.Module):
        tables = (vars(value).get(table) for table in MODULE_TABLES)
        undos += [_undo_dict(table) for table in tables if isinstance(table, dict)]  # TorchScript's are not
    names = slots(type(value))
    if names:
        undos.append(functools.partial(_restore_slots, value, names, dict(attributes(value))))
    return functools.partial(_in_order, undos)


def _restore_slots(value: object, names: list[str], kept: dict[str, object]) -> None:
    for name in names:
        with contextlib.suppress(AttributeError, TypeError):  # it has none to delete, or it is read-only
            if name in kept:
                object.__setattr__(value, name, kept[name])
            else:
                object.__delattr__(value, name)


def _undo_items(value: object) -> Undo | None:
    """Restore what a container, a function or a generator of random numbers holds apart from attributes."""
    if isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, numpy.random.Generator):
        return _undo_numpy(value)
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, types.FunctionType):
        return _undo_function(value)
    if isinstance(value, numpy.ndarray):
        return functools.partial(numpy.copyto, value, value.copy())
    if isinstance(value, bytearray):
        return functools.partial(value.__setitem__, slice(None), value[:])
    if isinstance(value, list):
        return functools.partial(list.__setitem__, value, slice(None), list(value))
    if isinstance(value, dict):
        return _undo_dict(value)
    if isinstance(value, collections.deque | set):
        return _undo_refilled(value)
    return None


def _undo_refilled(members: collections.deque[object] | set[object]) -> Undo:
    """Empty the container and fill it again."""
    kept = list(members)
    refill: Callable[[list[object]], None] = members.update if isinstance(members, set) else members.extend

    def undo() -> None:
        members.clear()
        refill(kept)

    return undo


def _undo_numpy(generator: numpy.random.Generator) -> Undo:
    kept = copy.deepcopy(generator.bit_generator.state)

    def undo() -> None:
        generator.bit_generator.state = copy.deepcopy(kept)

    return undo


def _undo_class(owner: type) -> Undo:
    """Restore the plain attributes of a user's class, such as counters."""
    kept = {k: v for k, v in vars(owner).items() if isinstance(v, _PLAIN) and not k.startswith("__")}

    def undo() -> None:
        for name, value in kept.items():
            setattr(owner, name, value)

    return undo


def _undo_dict(contents: dict[Any, Any]) -> Undo:
    """Restore the entries and their order, past the methods of a subclass, which may refuse writes."""
    kind: type[dict[object, object]] = OrderedDict if isinstance(contents, OrderedDict) else dict
    kept: list[tuple[object, object]] = list(kind.items(contents))

    def undo() -> None:
        keys = list(kind.keys(contents))
        if len(keys) != len(kept) or any(key is not known for key, (known, _) in zip(keys, kept, strict=True)):
            kind.clear(contents)
        for key, value in kept:
            kind.__setitem__(contents, key, value)

    return undo


def _undo_function(function: types.FunctionType) -> Undo:
    """Restore attributes, closure cells and the globals that the function names, which it may rebind."""
    own = _undo_dict(vars(function))
    cells = [(cell, cell.cell_contents) for cell in function.__closure__ or () if not _is_empty(cell)]
    names = set(global_names(function.__code__)) if is_user_file(function.__code__.co_filename) else set()
    bound = {name: function.__globals__[name] for name in names if name in function.__globals__}

    def undo() -> None:
        own()
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
