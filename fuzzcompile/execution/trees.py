"""Values nested in containers that pytree does not know: dataclasses, and subclasses of dict, list and tuple.

A dataclass or a dictionary of a class of its own (Hugging Face's ``ModelOutput`` is both) is one leaf to pytree, so
that tensors in it would neither be copied nor cast nor seen.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


def structure(tree: Any) -> str:
    """How a tree is nested, and of which classes its wrapped values are."""
    leaves, spec = pytree.tree_flatten(tree)
    classes = [_class_tree(leaf, frozenset()) for leaf in leaves if is_wrapped(leaf)]
    return f"{spec} with {', '.join(classes)}" if classes else str(spec)


def _class_tree(leaf: Any, path: frozenset[int]) -> str:
    inner = []
    if id(leaf) not in path:
        for name, value in _children(leaf):
            nested = [_class_tree(v, path | {id(leaf)}) for v in pytree.tree_leaves(value) if is_wrapped(v)]
            spec = pytree.tree_structure(value)
            shown = "" if spec.is_leaf() else str(spec)
            inner.append(name + (f"={shown}{'/'.join(nested)}" if shown or nested else ""))
    return f"{type(leaf).__qualname__}({', '.join(inner)})"


def is_wrapped(leaf: Any) -> bool:
    """Whether a leaf of pytree is a container all the same."""
    if isinstance(leaf, type | torch.Tensor):
        return False
    if isinstance(leaf, dict | list | tuple):
        return bool(pytree.tree_structure(leaf).is_leaf())
    return dataclasses.is_dataclass(leaf)


def named_leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree by name: ``out0``, and ``out0.logits`` for a field of a dataclass."""
    for index, leaf in enumerate(pytree.tree_leaves(tree)):
        yield from unwrapped(f"{name}{index}", leaf)


def unwrapped(name: str, leaf: Any, path: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """The leaves within one leaf of pytree; itself if it is no container, nothing where it contains itself."""
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


def _children(leaf: Any) -> list[tuple[str, Any]]:
    """What a wrapped value holds, by name: fields, then entries that are no fields."""
    fields = [entry.name for entry in dataclasses.fields(leaf)] if dataclasses.is_dataclass(leaf) else []
    held = [(name, getattr(leaf, name, None)) for name in fields]
    if isinstance(leaf, dict):
        held += [(str(key), value) for key, value in leaf.items() if key not in fields]
    elif isinstance(leaf, list | tuple) and not fields:
        held += [(str(index), value) for index, value in enumerate(leaf)]
    return held


def tree_map(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The tree with ``function`` applied to each tensor; containers without tensors stay the objects they are."""
    return _Mapping(function).tree(tree)


class _Mapping:
    """One walk over a tree. What is met twice is mapped once, so objects that are one stay one."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        self._function = function
        # With what it was made from: a freed object's identity could come back as another's.
        self._made: dict[int, tuple[Any, Any]] = {}

    def tree(self, tree: Any) -> Any:
        return pytree.tree_map(self._leaf, tree)

    def _leaf(self, leaf: Any) -> Any:
        if id(leaf) in self._made:
            return self._made[id(leaf)][1]
        if isinstance(leaf, torch.Tensor):
            made = self._function(leaf)
            self._made[id(leaf)] = leaf, made
            return made
        if is_wrapped(leaf) and any(isinstance(value, torch.Tensor) for _, value in unwrapped("", leaf)):
            return self._rebuilt(leaf)
        return leaf

    def _rebuilt(self, leaf: Any) -> Any:
        """A copy made without running code of the class, which may refuse or convert what it is given."""
        kind: Any = type(leaf)
        if isinstance(leaf, tuple):
            made = tuple.__new__(kind, [self.tree(value) for value in leaf])
        else:
            made = kind.__new__(kind)
        self._made[id(leaf)] = leaf, made
        if isinstance(leaf, dict):
            # dict's own method would leave an OrderedDict without its order.
            write: Any = OrderedDict.__setitem__ if isinstance(leaf, OrderedDict) else dict.__setitem__
            for key, value in leaf.items():
                write(made, key, self.tree(value))
        elif isinstance(leaf, list):
            list.extend(made, [self.tree(value) for value in leaf])
        slots = [entry.name for entry in dataclasses.fields(leaf)] if dataclasses.is_dataclass(leaf) else []
        attributes = dict.fromkeys([*getattr(leaf, "__dict__", ()), *slots])
        for name in attributes:
            if hasattr(leaf, name):
                object.__setattr__(made, name, self.tree(getattr(leaf, name)))
        return made
