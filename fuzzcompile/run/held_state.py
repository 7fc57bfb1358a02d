"""What objects hold, and functions that give it back: attributes, items, closure cells, states of generators."""

from __future__ import annotations

import collections
import contextlib
import copy
import random
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy
import torch
from torch import nn

from fuzzcompile.run.code_files import is_user_file
from fuzzcompile.run.reachable_state import (
    MODULE_TABLES,
    get_own_dict,
    holds_state,
    is_user_class,
    iterate_attributes,
    list_global_names,
    list_slots,
)

Undo = Callable[[], object]
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None), torch.Tensor)


def list_undos(objects: Iterable[object]) -> list[Undo]:
    """Functions that give objects what they hold now, as far as that can be restored."""
    undos: list[Undo] = []
    for value in objects:
        items = _undo_items(value)
        undos += [*([items] if items is not None else []), *_undo_attributes(value)]
    return undos


def _undo_attributes(value: object) -> Iterator[Undo]:
    if isinstance(value, type):
        if is_user_class(value):
            kept = [(k, v) for k, v in vars(value).items() if isinstance(v, _PLAIN) and not k.startswith("__")]
            yield from (partial(setattr, value, name, held) for name, held in kept)  # counters and the like
        return
    if not holds_state(value):
        return
    yield _undo_dict(get_own_dict(value))
    if isinstance(value, nn.Module):
        tables = (vars(value).get(table) for table in MODULE_TABLES)
        yield from (_undo_dict(table) for table in tables if isinstance(table, dict))  # TorchScript's are not
    if names := list_slots(type(value)):
        yield partial(_restore_slots, value, names, dict(iterate_attributes(value)))


def _restore_slots(value: object, names: list[str], kept: dict[str, object]) -> None:
    for name in names:
        with contextlib.suppress(AttributeError, TypeError):  # it has none to delete, or it is read-only
            if name in kept:
                object.__setattr__(value, name, kept[name])
            else:
                object.__delattr__(value, name)


def _undo_items(value: object) -> Undo | None:
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, numpy.random.Generator):
        generator, state = value.bit_generator, copy.deepcopy(value.bit_generator.state)
        return lambda: setattr(generator, "state", copy.deepcopy(state))
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if isinstance(value, types.FunctionType):
        return _undo_function(value)
    if isinstance(value, numpy.ndarray):
        return partial(numpy.copyto, value, value.copy())
    if isinstance(value, bytearray):
        return partial(value.__setitem__, slice(None), value[:])
    if isinstance(value, list):
        return partial(list.__setitem__, value, slice(None), list(value))
    if isinstance(value, dict):
        return _undo_dict(value)
    if isinstance(value, collections.deque | set):
        kept, refill = list(value), value.update if isinstance(value, set) else value.extend
        return lambda: [value.clear(), refill(kept)]
    return None


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
    cells = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            cells.append((cell, cell.cell_contents))
    names = list_global_names(function.__code__) if is_user_file(function.__code__.co_filename) else ()
    bound = {name: function.__globals__[name] for name in names if name in function.__globals__}

    def undo() -> None:
        own()
        for cell, contents in cells:
            cell.cell_contents = contents
        function.__globals__.update(bound)

    return undo
