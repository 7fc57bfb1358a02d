"""What is comparable of a Python value, in eager mode and as dynamo knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

Digest = tuple[object, ...] | None
"""What is comparable of a Python value; None, also within it, where nothing is known."""

V = TypeVar("V")

_DEEPEST, _WIDEST = 3, 32
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ORDERED, _UNORDERED = (list, tuple, torch.Size), (set, frozenset)
_CONTAINERS = (*_ORDERED, *_UNORDERED, dict)
_TENSOR, _OBJECT = ("tensor",), ("object",)


def digest_each(values: Mapping[str, V], digest: Callable[[V], Digest]) -> dict[str, Digest]:
    """What is comparable of each of several values."""
    return {name: digest(value) for name, value in list(values.items())}


def digest_variable(variable: Any, depth: int = _DEEPEST) -> Digest:
    """What dynamo knows of a value that is comparable; None of one that only the run gives."""
    try:
        if not getattr(variable, "is_realized", lambda: True)():
            return None  # an argument that nothing has been done to
        variable = variable.realize() if hasattr(variable, "realize") else variable
        if type(variable).__name__ == "CellVariable":
            return None  # eager mode shows what the cell holds
        if type(variable).__name__ == "ConstantVariable":
            return digest(variable.value)
        kind = variable.python_type()
        if issubclass(kind, torch.Tensor):
            return _TENSOR
        if kind in _PLAIN:
            return None  # of a value that only the run gives
        if kind not in _CONTAINERS:
            return _OBJECT
        if depth == 0:
            return (kind, None)
        if kind is dict or kind in _UNORDERED:
            held = [(digest_variable(getattr(key, "vt", key), 0), item) for key, item in variable.items.items()]
            if kind in _UNORDERED:
                return _digest_set(kind, [key for key, _ in held])
            items = tuple((key, digest_variable(item, depth - 1)) for key, item in held)
            return (kind, items if len(items) <= _WIDEST else None)
        items = variable.items
        return (kind, tuple(digest_variable(item, depth - 1) for item in items) if len(items) <= _WIDEST else None)
    except Exception:  # of dynamo, which does not know the value
        return None


def _digest_set(kind: type, keys: list[Digest]) -> Digest:
    return (kind, None if any(key is None or None in key for key in keys) else frozenset(keys))


def digest(value: object, depth: int = _DEEPEST) -> Digest:
    """What is compared of a value: its type and what it holds, in plain values and containers; a tensor as such."""
    kind: type = type(value)
    if isinstance(value, torch.Tensor):
        return _TENSOR
    if kind in _PLAIN:
        return (kind, repr(value))
    if kind not in _CONTAINERS:
        return _OBJECT
    if depth == 0:
        return (kind, None)
    if isinstance(value, (set, frozenset)):
        return _digest_set(kind, [digest(item, 0) for item in value])
    if len(value) > _WIDEST:  # type: ignore[arg-type]
        return (kind, None)
    if isinstance(value, dict):
        return (kind, tuple((digest(key, 0), digest(item, depth - 1)) for key, item in value.items()))
    return (kind, tuple(digest(item, depth - 1) for item in value))  # type: ignore[attr-defined]


def agree(eager: object, traced: object) -> bool:
    """Return whether two digests can be of one value."""
    if eager is None or traced is None or eager == traced:
        return True
    if _OBJECT in (eager, traced) and {type(each) for each in (eager, traced)} == {tuple}:
        # A value of another class may be traced as what it derives from.
        kinds = {each[0] for each in (eager, traced) if isinstance(each, tuple)}
        return not kinds & {_TENSOR[0], *_CONTAINERS}
    if not isinstance(eager, tuple) or not isinstance(traced, tuple) or len(eager) != len(traced):
        return False
    return all(map(agree, eager, traced))


def holds_items(handler: type | None) -> bool:
    """Return whether a class of dynamo is of a container, whose items are compared."""
    return handler is not None and handler.__module__.rpartition(".")[2] in ("lists", "dicts", "sets")


def word_digest(stored: Digest) -> str:
    """A value for a reader."""
    if stored is None or stored[0] in ("tensor", "object"):
        return "?" if stored is None else str(stored[0])
    kind, held = stored[0], stored[-1]
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    if isinstance(held, str):
        return held
    words = ", ".join(word_digest(each) if isinstance(each, tuple) else "?" for each in held) if held else ""  # type: ignore[attr-defined]
    return f"{name}({words})"
