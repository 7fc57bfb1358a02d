"""What a call changes of a model's own objects is observed: their values, order and class, however deep they lie."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.run.case import Case
from fuzzcompile.run.runs import run_eager
from tests.run.execution.test_observing import CPU, case


@dataclass
class Held:
    """An object of the program's own."""

    value: object


class Slotted:
    """One without a ``__dict__``."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Changing(nn.Module):
    """A module whose calls change what it holds."""

    def __init__(self, held: object, change: Callable[[Any], object]) -> None:
        super().__init__()
        self.held, self.change = held, [change]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change[0](self)
        return x * 2


def _set(value: object) -> Callable[[Any], object]:
    return lambda model: setattr(model, "held", value)


# What a module holds, what a call does to it, and what is seen of that.
CHANGES: dict[str, tuple[Callable[[], object], Callable[[Any], object], dict[str, object]]] = {
    "float": (lambda: 1.5, _set(2.5), {"held": 1.0}),
    "bytes": (lambda: b"a", _set(b"b"), {"held": b"b"}),
    "complex": (lambda: 1j, _set(2j), {"held": 2j}),
    "range": (lambda: range(3), _set(range(4)), {"held": range(4)}),
    "dtype": (lambda: torch.float32, _set(torch.float16), {"held": torch.float16}),
    "class": (lambda: Held, _set(Slotted), {"held": "Slotted"}),
    "function": (lambda: torch.sin, _set(torch.cos), {"held": "_VariableFunctionsClass.cos"}),
    "class of an object": (lambda: Held(1.0), _set(Slotted(1.0)), {"type(held)": "Slotted"}),
    "new list": (lambda: None, lambda model: setattr(model, "more", [1.0]), {"type(more)": "list"}),
    "tuple": (lambda: (1, 2.0), _set((1, 3.0)), {"held[1]": 1.0}),
    "set": (lambda: {1}, lambda model: model.held.add(2), {"set(held)": (["2"], [], [])}),
    "deque": (lambda: collections.deque([1]), lambda model: model.held.append(2), {"len(held)": (1, ("2",))}),
    "bytearray": (lambda: bytearray(b"a"), lambda model: model.held.append(98), {"held": bytearray(b"ab")}),
    "order": (
        lambda: {"a": 1, "b": 2},
        lambda model: model.held.update(a=model.held.pop("a")),
        {"list(held)": ([], [], ["'b'", "'a'"])},
    ),
    "nested": (lambda: {"a": [{"b": 1.0}]}, lambda model: model.held["a"][0].update(b=5.0), {"held.a.0['b']": 4.0}),
    "nested list": (lambda: [[1, 2], [3]], lambda model: model.held[0].append(5), {"len(held.0)": (1, ("5",))}),
    "object": (lambda: [Held(1.0)], lambda model: setattr(model.held[0], "value", 3.0), {"held.0.value": 2.0}),
    "slots": (lambda: Slotted([1]), lambda model: model.held.value.append(2), {"len(held.value)": (1, ("2",))}),
    "float in a list": (list, lambda model: model.held.append(2.0), {"len(held), new item 0": 2.0}),
    "namespace": (lambda: types.SimpleNamespace(a=1.0), lambda model: setattr(model.held, "a", 2.0), {"held.a": 1.0}),
}


def seen(held: Callable[[], object], change: Callable[[Any], object]) -> dict[str, object]:
    made: Case = case(lambda: (Changing(held(), change), (torch.ones(3),)))
    values = run_eager(made, CPU).values
    return {value.name.removesuffix(" after the call"): value.value for value in values if value.kind == "mutation"}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_observed(name: str):
    held, change, wanted = CHANGES[name]
    found = seen(held, change)
    assert {f"change of {place}": effect for place, effect in wanted.items()}.items() <= found.items()
    assert not [value for key, value in seen(held, lambda model: None).items() if "held" in key]


def test_an_attribute_that_is_deleted_or_of_another_class_is_observed():
    absent = seen(lambda: 3, lambda model: delattr(model, "held")).get("attribute held")
    assert repr(absent) == "absent"
    assert seen(lambda: 3, lambda model: delattr(model, "held")) == {"attribute held": absent}
    assert seen(lambda: True, _set(1)) == {"attribute held": 1}
    assert seen(lambda: 1, _set(1.0)) == {"attribute held": absent, "change of held": 1.0}


def test_what_an_iterator_is_made_of_is_no_matter():
    assert seen(lambda: iter([1, 2]), _set(iter((1, 2)))) == {}


class Watched(nn.Module):
    """A module that keeps what harmless programs keep."""

    def __init__(self, keep: Callable[[Any, torch.Tensor], object]) -> None:
        super().__init__()
        self.recent: collections.deque[object] = collections.deque(maxlen=4)
        self.seen: set[object] = set()
        self.order: dict[str, int] = {}
        self.held, self.context, self.keep = None, torch.autocast("cpu", dtype=torch.bfloat16), [keep]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x.sin() * 3, -1)
        self.keep[0](self, y)
        return y * 2


def _enter(model: Any, y: torch.Tensor) -> None:
    with model.context:
        model.held = float(y.sum())


HARMLESS: dict[str, Callable[[Any, torch.Tensor], object]] = {
    "floats in a deque": lambda model, y: model.recent.append(float((y * y).mean())),
    "floats in a set": lambda model, y: model.seen.add(float((y * y).mean())),
    "pairs": lambda model, y: model.recent.append((1, float((y * y).mean()))),
    "NumPy's numbers": lambda model, y: setattr(model, "held", y.numpy().max()),
    "a context of torch": _enter,
    "a function of torch's making": lambda model, y: setattr(model, "held", torch.vmap(torch.sin)),
    "keys out of a set": lambda model, y: [model.order.setdefault(key, 1) for key in {"ab", "cd", "ef", str(len(y))}],
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_harmless_programs_keep_is_no_bug(name: str):
    made = case(lambda: (Watched(HARMLESS[name]), (torch.randn(16, 37, generator=torch.Generator().manual_seed(0)),)))
    assert not triage(made, CPU).is_bug
