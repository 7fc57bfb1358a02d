"""What a call has changed of plain values and containers: numbers and lengths by how much, else what is there."""

from __future__ import annotations

import re
from collections.abc import Collection

from fuzzcompile.run.call_state import UNTOLD, CallState

_ROUNDED = (float, complex)


def list_effects(before: CallState, after: CallState, known: Collection[str]) -> dict[str, object]:
    """The effects of a call by name, from the states around it.

    Which class or function is held somewhere is told by its name. What is ``known`` by the path of an attribute is left
    out.
    """
    effects: dict[str, object] = {}
    for name in after.list_changes(before):
        was, now = before.facts.get(name), after.facts.get(name)
        fact = now or was
        assert fact is not None, "it is in one of the states"
        # What is new in a container stands with its length or its keys.
        new = fact.carrier == "item" and after.tells_presence(name, before)
        if fact.plain is UNTOLD or new or ".".join(re.findall(r"\w+", name)) in known:
            continue
        old, held = (None if each is None else each.plain for each in (was, now))
        if isinstance(old, tuple) and isinstance(held, tuple) and fact.kind == "length":
            effects |= _tell_growth(name, old, held)
        elif isinstance(old, tuple | frozenset) and isinstance(held, tuple | frozenset):
            effects[name] = _compare_keys(old, held)
        else:
            effects[name] = _subtract(old, held)
    return effects


def _tell_growth(name: str, before: tuple[object, ...], after: tuple[object, ...]) -> dict[str, object]:
    """How much longer a container is, and what is there from the first item on that is another.

    Numbers that round are effects of their own, by no place: a list that no run restores grows with each.
    """
    pairs = enumerate(zip(before, after, strict=False))
    left = after[next((n for n, (was, now) in pairs if repr(was) != repr(now)), min(len(before), len(after))) :]
    numbers = {f"{name}, new item {n}": item for n, item in enumerate(left) if isinstance(item, _ROUNDED)}
    told = tuple(f"a {type(item).__name__}" if isinstance(item, _ROUNDED) else item for item in left)
    return {name: (len(after) - len(before), told), **numbers}


def _compare_keys(before: Collection[object], after: Collection[object]) -> tuple[list[object], ...]:
    """The keys that are new, those that are gone, and the others where a dict has them in another order.

    New ones have no order: a program may take them out of a set, whose order is anybody's.
    """
    stay = [key for key in before if key in after], [key for key in after if key in before]
    moved = stay[1] if isinstance(after, tuple) and stay[0] != stay[1] else []
    return sorted(set(after) - set(before), key=str), sorted(set(before) - set(after), key=str), moved


def _subtract(before: object, after: object) -> object:
    """How far a call moves a number, else what is there after it."""
    numbers = [value for value in (before, after) if isinstance(value, int | float) and not isinstance(value, bool)]
    return numbers[1] - numbers[0] if len(numbers) == 2 else after
