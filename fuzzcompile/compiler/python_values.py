"""What is comparable of a Python value, in eager mode and as dynamo knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.traced_tensors import TensorSummary, TracedTensor

Digest = tuple[object, ...] | None
"""What is comparable of a Python value; None, also within it, where nothing is known."""

V = TypeVar("V")

_DEEPEST, _WIDEST = 3, 32
_NUMBERS = (bool, int, float, complex, str)
_PLAIN = (*_NUMBERS, bytes, type(None))
_SPANS = (range, slice)
_ORDERED, _UNORDERED = (list, tuple, torch.Size, deque), (set, frozenset)
_CONTAINERS = (*_ORDERED, *_UNORDERED, dict)
PLAIN_TYPES = frozenset((*_PLAIN, *_SPANS, *_CONTAINERS))
"""Python's own types whose values are compared whole."""
TENSOR, _OBJECT = ("tensor",), ("object",)


def digest_each(values: Mapping[str, V], digest: Callable[[V], Digest]) -> dict[str, Digest]:
    """Digest several values."""
    return {name: digest(value) for name, value in list(values.items())}


def digest_variable(
    variable: Any, depth: int = _DEEPEST, *, tensors: Callable[[Any], object] = lambda variable: None
) -> Digest:
    """Digest what dynamo knows of a value; None of one that only the run gives.

    ``tensors`` says what is comparable of a tensor.
    """
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
            return (*TENSOR, tensors(variable))
        if kind in _PLAIN:
            return None  # of a value that only the run gives
        if kind in _SPANS:
            return digest(variable.as_python_constant())
        if kind not in _CONTAINERS:
            return _OBJECT
        if depth == 0:
            return (kind, None)
        if kind is dict or kind in _UNORDERED:
            held = [(digest_variable(getattr(key, "vt", key), 0), item) for key, item in variable.items.items()]
            if kind in _UNORDERED:
                return _digest_set(kind, [key for key, _ in held])
            items = tuple((key, digest_variable(item, depth - 1, tensors=tensors)) for key, item in held)
            return (kind, items if len(items) <= _WIDEST else None)
        # What a deque may hold at most is a part of it.
        listed = [*variable.items, *([variable.maxlen] if kind is deque else ())]
        if len(listed) > _WIDEST:
            return (kind, None)
        return (kind, tuple(digest_variable(item, depth - 1, tensors=tensors) for item in listed))
    except Exception:  # of dynamo, which does not know the value
        return None


def _digest_set(kind: type, keys: list[Digest]) -> Digest:
    return (kind, None if any(key is None or None in key for key in keys) else frozenset(keys))


def digest(
    value: object, depth: int = _DEEPEST, *, tensors: Callable[[torch.Tensor], object] = lambda tensor: None
) -> Digest:
    """Digest a value to compare it: its type and what it holds; of a tensor, what ``tensors`` says of it."""
    kind: type = type(value)
    if isinstance(value, torch.Tensor):
        return (*TENSOR, tensors(value))
    if kind in (*_PLAIN, *_SPANS):
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
        return (kind, tuple((digest(key, 0), digest(item, depth - 1, tensors=tensors)) for key, item in value.items()))
    items = [*value, *([value.maxlen] if isinstance(value, deque) else ())]  # type: ignore[misc]
    return (kind, tuple(digest(item, depth - 1, tensors=tensors) for item in items))


def agree(eager: object, traced: object) -> bool:
    """Return whether two digests can be of one value."""
    traced = _look_up(traced)
    if isinstance(eager, TensorSummary) and isinstance(traced, TensorSummary):
        return eager.fits(traced)
    if eager is None or traced is None or eager == traced:
        return True
    if _OBJECT in (eager, traced) and {type(each) for each in (eager, traced)} == {tuple}:
        # A value of another class may be traced as what it derives from.
        kinds = {each[0] for each in (eager, traced) if isinstance(each, tuple)}
        return not kinds & {*TENSOR, *_CONTAINERS}
    if not isinstance(eager, tuple) or not isinstance(traced, tuple) or len(eager) != len(traced):
        return False
    return all(map(agree, eager, traced))


def list_summaries(values: Mapping[str, Digest]) -> list[TensorSummary]:
    """List what is known of the tensors among several values, and in their containers."""
    return [each for each in pytree.tree_leaves(list(values.values())) if isinstance(each, TensorSummary)]


def _look_up(held: object) -> object:
    """What is known of a tensor; anything else as it is."""
    return held.summary if isinstance(held, TracedTensor) else held


def hold_alike(eager: Digest, traced: Digest) -> bool:
    """Return whether two digests are of tensors with the same values, of which one alone requires a gradient."""
    pair = [each[1] if each is not None and each[:1] == TENSOR else None for each in (eager, traced)]
    ours, theirs = map(_look_up, pair)
    return isinstance(ours, TensorSummary) and isinstance(theirs, TensorSummary) and ours.holds_alike(theirs)


def is_number(variable: Any) -> bool:
    """Return whether a variable of dynamo's is a number or a string, which it may or may not know."""
    try:
        return issubclass(variable.python_type(), _NUMBERS)
    except Exception:  # of dynamo, which does not know the type
        return False


def holds_items(handler: type | None) -> bool:
    """Return whether a class of dynamo is of a container, whose items are compared."""
    return handler is not None and handler.__module__.rpartition(".")[2] in ("lists", "dicts", "sets")


def word_digest(stored: Digest) -> str:
    """A value for a reader."""
    if stored is None or stored == _OBJECT:
        return "?" if stored is None else str(stored[0])
    if stored[:1] == TENSOR:
        held = _look_up(stored[1])
        return TENSOR[0] if held is None else f"tensor ({held})"
    kind, held = stored[0], stored[-1]
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    if isinstance(held, str):
        return held
    words = ", ".join(word_digest(each) if isinstance(each, tuple) else "?" for each in held) if held else ""  # type: ignore[attr-defined]
    return f"{name}({words})"
