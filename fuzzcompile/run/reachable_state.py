"""Objects that a callable can reach: tensors in modules, attributes, containers, closures and globals, by name.

Functions here also give objects back what they hold: attributes, items, closure cells, states of generators.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import functools
import random
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.run.case import Arguments
from fuzzcompile.run.code_files import is_user_file
from fuzzcompile.run.tensors import is_wrapped, unwrap

# A program's state does not have more objects than this; the walk ends there.
_MAX_OBJECTS = 200_000
# A longer list or dict is data, not a place for a counter.
_MAX_ITEMS = 1000
Plain = int | str | None
HOOK_TABLES = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, types.ModuleType)
# By exact type, for speed: most of what a walk meets.
_COMMON_ATOMS = frozenset((type(None), bool, int, float, str))
_CONTAINERS = frozenset((dict, collections.OrderedDict, list, tuple, set))
# Classes of the standard library whose instances hold what a program puts there.
_HOLDERS = (collections.UserDict, collections.UserList, types.SimpleNamespace, argparse.Namespace)
# Packages whose objects run a program and are no part of it.
_MACHINERY = ("fuzzcompile.", "triton.", "torch.fx.", "torch._")


class ReachedObjects:
    """All that ``roots``, by name, reach, each object once.

    ``tensors`` are named by their path from a root: ``parameter layers.0.weight`` and ``buffer mean`` below a module
    that is a root with an empty name, ``parameter model.weight`` below a module that the root closes over, ``tensor
    cache`` for a tensor that is neither. ``objects`` are all other objects, in the order of the walk, which ends after
    200 000. ``buffers`` are the tensors that torch's own machinery of distributed programs keeps for itself (what was
    gathered of a sharded parameter), which are no state of the program.

    With ``functions`` the closures of functions and the globals that they name are followed. ``restored``: what
    functions and classes hold is the same at the start of every run, not just what objects hold.
    """

    def __init__(self, roots: Mapping[str, object], *, functions: bool = True, restored: bool = True) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.buffers: list[torch.Tensor] = []
        self.objects: list[object] = []
        self._paths: list[str | None] = []  # None where plain attributes say nothing
        self._named: list[str | None] = []  # None for what is the program's no more
        self._restored = restored
        self._functions = functions
        self._seen: dict[int, object] = {}
        for name, root in roots.items():
            self._walk(root, name)

    @property
    def complete(self) -> bool:
        """Return whether the walk has come to its end."""
        return len(self._seen) < _MAX_OBJECTS

    def list_named(self) -> list[tuple[str, object]]:
        """The program's objects but tensors, each with its path from a root."""
        return [(name, value) for name, value in zip(self._named, self.objects, strict=True) if name is not None]

    def plain_attributes(self) -> dict[str, Plain]:
        """Attributes that are whole numbers, flags, strings or None, and such items of lists and dicts, by path.

        Those of torch's own objects are left out, since the compiler sets some, and so is what no run restores. The
        tables of a module's hooks too: their keys count the hooks of the process. Functions have none here.
        """
        plain: dict[str, Plain] = {}
        for path, value in zip(self._paths, self.objects, strict=True):
            plain_object = type(value) not in _CONTAINERS and not is_torch_object(value)
            if path is not None and plain_object and holds_state(value):
                hooked = isinstance(value, nn.Module)
                own = ((k, v) for k, v in iterate_attributes(value) if not (hooked and k in HOOK_TABLES))
                plain.update(_iterate_plain(path, own))
        return plain

    def _walk(self, start: object, name: str) -> None:
        pending, machines = [(start, name, "tensor", False)], list[tuple[object, str, str, bool]]()
        while (pending or machines) and len(self._seen) < _MAX_OBJECTS:
            machinery = not pending  # it comes last, as it refers to the model's own parts
            value, path, kind, shared = (machines if machinery else pending).pop()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            if isinstance(value, types.FunctionType | type) and not self._functions:
                continue
            self._seen[id(value)] = value  # kept alive, so that its id is not reused
            if isinstance(value, torch.Tensor):
                if machinery:
                    self.buffers.append(value)
                else:
                    self._add(value, path, "parameter" if isinstance(value, nn.Parameter) else kind)
                continue
            if not machinery and _distributes(value):
                del self._seen[id(value)]
                machines.append((value, path, kind, shared))
                continue
            self.objects.append(value)
            self._paths.append(None if shared or machinery else path)
            self._named.append(None if machinery else path)
            shared = shared or (not self._restored and isinstance(value, types.FunctionType | type))
            buffers = value._buffers if isinstance(value, nn.Module) else ()
            children = [
                (c, _join_path(path, key), "buffer" if key in buffers else "tensor", shared)
                for key, c in (_iterate_items(value) if type(value) in _CONTAINERS else _iterate_children(value))
                if type(c) not in _COMMON_ATOMS
            ]
            (machines if machinery else pending).extend(reversed(children))

    def _add(self, tensor: torch.Tensor, path: str, kind: str) -> None:
        name, number = f"{kind} {path}", 2
        while name in self.tensors:
            name, number = f"{kind} {path} ({number})", number + 1
        self.tensors[name] = tensor


def _join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key else path or key


def _iterate_children(value: object) -> Iterator[tuple[str, object]]:
    """The parts of an object, by the name that a user would give them."""
    if isinstance(value, nn.Module):
        # A parameter's path is that of named_parameters(), without _parameters and _modules in it.
        own = {**value._parameters, **value._buffers, **value._modules}
        yield from own.items()
        yield from ((key, child) for key, child in vars(value).items() if key not in MODULE_TABLES)
        yield "", type(value)
    elif isinstance(value, types.FunctionType):
        yield from _iterate_function(value)
    elif isinstance(value, types.MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, functools.partial):
        yield from (("", value.func), ("", list(value.args)), ("", dict(value.keywords)))
    elif isinstance(value, type):
        if is_user_class(value):
            yield from ((k, v) for k, v in vars(value).items() if k == "__call__" or not k.startswith("__"))
            yield from (("", base) for base in value.__bases__)
    elif isinstance(value, torch.optim.Optimizer):
        yield "param_groups", value.param_groups  # first, so that parameters are named by their group
        yield from vars(value).items()
    else:
        yield from _iterate_items(value)
        if holds_state(value):
            yield from iterate_attributes(value)
        if is_user_class(type(value)):
            yield "", type(value)


def _iterate_items(value: object) -> Iterator[tuple[str, object]]:
    """Yield the items of a container; a library's own mappings may do anything when read, and are left out."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = dict.items(value)  # past the methods of a subclass, which may convert what they return
    elif isinstance(value, collections.deque | list | tuple | set | frozenset):
        yield from ((str(index), child) for index, child in enumerate(value))
    elif isinstance(value, collections.UserDict | types.MappingProxyType) or (
        is_user_class(type(value)) and isinstance(value, Mapping)
    ):
        items = value.items()
    for key, child in items:
        yield key if isinstance(key, str) else "", child
        yield "", key


def _iterate_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
    yield "", list(function.__defaults__ or ())
    yield "", dict(function.__kwdefaults__ or {})
    yield from vars(function).items()
    if is_user_file(function.__code__.co_filename):
        for name in list_global_names(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]


def iterate_attributes(value: object) -> Iterator[tuple[str, object]]:
    """The attributes that an instance itself has, in its ``__dict__`` and its slots."""
    yield from list(get_own_dict(value).items())
    for name in list_slots(type(value)):
        with contextlib.suppress(AttributeError):
            yield name, object.__getattribute__(value, name)


def get_own_dict(value: object) -> dict[str, object]:
    """The ``__dict__`` of an instance, past the ``__getattr__`` of a proxy, which may do anything."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


def _iterate_plain(
    path: str, children: Iterable[tuple[str, object]], *, nested: bool = True
) -> Iterator[tuple[str, Plain]]:
    for name, child in children:
        if name and (child is None or isinstance(child, int | str)):  # a key of a dict has no name
            yield _join_path(path, name), child
        elif nested and isinstance(child, dict | list) and len(child) <= _MAX_ITEMS:
            yield from _iterate_plain(_join_path(path, name), _iterate_items(child), nested=False)


def list_slots(owner: type) -> list[str]:
    """The attributes that a class and its bases keep in slots."""
    names: list[str] = []
    for base in owner.__mro__:
        declared = base.__dict__.get("__slots__", ())
        for name in [declared] if isinstance(declared, str) else declared:
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def list_global_names(code: types.CodeType) -> Iterator[str]:
    """The names that a function and those inside it may read as globals (names of attributes among them)."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from list_global_names(constant)


def holds_state(value: object) -> bool:
    """Return whether the attributes of an instance belong to the program, whichever library defines its class.

    Those of the standard library (locks, loggers) and of the compiler do not.
    """
    return _get_class_facts(type(value))[1]


def is_torch_object(value: object) -> bool:
    """Return whether an object is of a class of torch's own, and no module: the compiler may set what it holds."""
    return type(value).__module__.startswith("torch.") and not isinstance(value, nn.Module)


def _distributes(value: object) -> bool:
    """Return whether an object belongs to torch's machinery of distributed programs, and is no part of a model."""
    of_torch = type(value).__module__.startswith("torch.distributed.")
    return of_torch and not isinstance(value, nn.Module | torch.optim.Optimizer)


def is_user_class(owner: type) -> bool:
    """Return whether a class is defined in the user's own code."""
    return _get_class_facts(owner)[0]


def _get_class_facts(owner: type) -> tuple[bool, bool]:
    """Whether a class is the user's own, and whether its instances hold state."""
    if owner not in _KNOWN:
        module = sys.modules.get(owner.__module__)
        of_user = module is not None and is_user_file(getattr(module, "__file__", None) or "")
        if of_user or issubclass(owner, (nn.Module, torch.optim.Optimizer, *_HOLDERS)):
            holds = True
        elif issubclass(owner, (type, *_ATOMS)) or f"{owner.__module__}.".startswith(_MACHINERY):
            holds = False
        else:
            library = owner.__module__.partition(".")[0] not in sys.stdlib_module_names
            holds = library or dataclasses.is_dataclass(owner)
        _KNOWN[owner] = of_user, holds
    return _KNOWN[owner]


# Weak, because a class keeps the globals of its module alive.
_KNOWN: weakref.WeakKeyDictionary[type, tuple[bool, bool]] = weakref.WeakKeyDictionary()


def name_arguments(call: object) -> Iterator[tuple[str, object]]:
    """The leaves of one call's inputs: by keyword, or ``argument0`` by position, with a number within a container."""
    by_position: Iterable[object] = call if isinstance(call, tuple | list) else (call,)
    by_keyword: Mapping[str, object] = {}
    if isinstance(call, Arguments):
        by_position, by_keyword = call.args, call.kwargs
    elif isinstance(call, Mapping):
        by_position, by_keyword = (), {str(name): argument for name, argument in call.items()}
    named = [(f"argument{index}", argument) for index, argument in enumerate(by_position)]
    for name, argument in (*named, *by_keyword.items()):
        leaves = pytree.tree_leaves(argument)
        single = len(leaves) == 1 and leaves[0] is argument
        yield from ((name if single else f"{name}.{index}", leaf) for index, leaf in enumerate(leaves))


def is_holder(leaf: object) -> bool:
    """Return whether a leaf of a tree is an object whose attributes may hold tensors: a module, a key-value cache."""
    return not isinstance(leaf, torch.Tensor | type) and not is_wrapped(leaf) and holds_state(leaf)


def name_holders(call: object) -> dict[str, object]:
    """The objects among the inputs of one call that may hold tensors, by name, those in dataclasses included."""
    inner = (pair for name, leaf in name_arguments(call) for pair in unwrap(name, leaf))
    return {name: leaf for name, leaf in inner if is_holder(leaf)}


def is_model(leaf: object) -> bool:
    """Return whether a leaf is a module or an optimizer: part of the program, no value that it computes with."""
    return isinstance(leaf, nn.Module | torch.optim.Optimizer)


def name_held_tensors(name: str, leaf: object) -> dict[str, torch.Tensor]:
    """The tensors that an output holds, by name; none for a module or an optimizer."""
    if not is_holder(leaf) or is_model(leaf):
        return {}
    reached = ReachedObjects({name: leaf}, functions=False).tensors
    return {label.split(" ", 1)[1]: tensor for label, tensor in reached.items()}


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
