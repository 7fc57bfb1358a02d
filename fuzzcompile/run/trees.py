"""Values nested in containers that pytree does not know: dataclasses, and subclasses of dict, list and tuple.

A dataclass or an instance of a subclass of dict (Hugging Face's ``ModelOutput`` is both) is one leaf to pytree, so
that the tensors in it would be neither copied, cast nor compared.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

T = TypeVar("T")


def structure(tree: object) -> str:
    """The nesting of a tree, and the classes of its wrapped values."""
    leaves, spec = pytree.tree_flatten(tree)
    classes = [_class_tree(leaf, frozenset()) for leaf in leaves if is_wrapped(leaf)]
    return f"{spec} with {', '.join(classes)}" if classes else str(spec)


def _class_tree(leaf: object, path: frozenset[int]) -> str:
    inner = []
    if id(leaf) not in path:
        for name, value in _children(leaf):
            nested = [_class_tree(v, path | {id(leaf)}) for v in pytree.tree_leaves(value) if is_wrapped(v)]
            spec = pytree.tree_structure(value)
            shown = "" if spec.is_leaf() else str(spec)
            inner.append(name + (f"={shown}{'/'.join(nested)}" if shown or nested else ""))
    return f"{type(leaf).__qualname__}({', '.join(inner)})"


def is_wrapped(leaf: object) -> bool:
    """Whether a leaf of pytree is a container nevertheless."""
    if isinstance(leaf, type | torch.Tensor):
        return False
    if isinstance(leaf, dict | list | tuple):
        return bool(pytree.tree_structure(leaf).is_leaf())
    return dataclasses.is_dataclass(leaf)


def named_leaves(name: str, tree: object) -> Iterator[tuple[str, object]]:
    """The leaves of a tree by name: ``out0``, and ``out0.logits`` for a field of a dataclass."""
    for index, leaf in enumerate(pytree.tree_leaves(tree)):
        yield from unwrapped(f"{name}{index}", leaf)


def unwrapped(name: str, leaf: object, path: frozenset[int] = frozenset()) -> Iterator[tuple[str, object]]:
    """The leaves within one leaf of pytree: itself if it is not a container, nothing if it contains itself."""
    if not is_wrapped(leaf):
        yield name, leaf
        return
    if id(leaf) in path:
        return
    for key, value in _children(leaf):
        leaves = pytree.tree_leaves(value)
        single = len(leaves) == 1 and leaves[0] is value
        for index, inner in enumerate(leaves):
            yield from unwrapped(f"{name}.{key}" + ("" if single else str(index)), inner, path | {id(leaf)})


def _children(leaf: object) -> list[tuple[str, object]]:
    """The parts of a wrapped value, by name: fields, then entries that are not fields."""
    fields = [entry.name for entry in dataclasses.fields(leaf)] if dataclasses.is_dataclass(leaf) else []
    children = [(name, getattr(leaf, name, None)) for name in fields]
    if isinstance(leaf, dict):
        children += [(str(key), value) for key, value in leaf.items() if key not in fields]
    elif isinstance(leaf, list | tuple) and not fields:
        children += [(str(index), value) for index, value in enumerate(leaf)]
    return children


def tree_map(
    function: Callable[[torch.Tensor], torch.Tensor], tree: T, objects: Callable[[object], object] = lambda leaf: leaf
) -> T:
    """The tree with ``function`` applied to each tensor, and ``objects`` to each other leaf.

    Containers in which nothing changes stay the objects they are.
    """
    return _Mapping(function, objects).tree(tree)


class _Mapping:
    """One walk over a tree. An object met twice is mapped once, so that its two places still share one object."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], objects: Callable[[object], object]) -> None:
        self._function = function
        self._objects = objects
        # Each with the object it was made from: the id of a freed object may be given to a new one.
        self._made: dict[int, tuple[object, object]] = {}

    def tree(self, tree: T) -> T:
        mapped: T = pytree.tree_map(self._leaf, tree)
        return mapped

    def _leaf(self, leaf: object) -> object:
        if id(leaf) in self._made:
            return self._made[id(leaf)][1]
        if isinstance(leaf, torch.Tensor):
            made = self._function(leaf)
            self._made[id(leaf)] = leaf, made
            return made
        if not is_wrapped(leaf):
            return self._objects(leaf)
        changes = any(self._leaf(value) is not value for _, value in unwrapped("", leaf))
        return self._rebuilt(leaf) if changes else leaf

    def _rebuilt(self, leaf: object) -> object:
        """A copy made without running code of the class, which may refuse or convert what it is given."""
        made: Any  # an instance of the leaf's own class
        if isinstance(leaf, tuple):
            made = tuple.__new__(type(leaf), [self.tree(value) for value in leaf])
        else:
            made = type(leaf).__new__(type(leaf))
        self._made[id(leaf)] = leaf, made
        if isinstance(leaf, dict):
            # dict's own method would leave an OrderedDict without its order.
            kind = OrderedDict if isinstance(leaf, OrderedDict) else dict
            for key, value in leaf.items():
                kind.__setitem__(made, key, self.tree(value))
        elif isinstance(leaf, list):
            list.extend(made, [self.tree(value) for value in leaf])
        slots = [entry.name for entry in dataclasses.fields(leaf)] if dataclasses.is_dataclass(leaf) else []
        attributes = dict.fromkeys([*getattr(leaf, "__dict__", ()), *slots])
        for name in attributes:
            if hasattr(leaf, name):
                object.__setattr__(made, name, self.tree(getattr(leaf, name)))
        return made
