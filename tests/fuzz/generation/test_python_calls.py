"""Calls of Python's own types: the table says what they do, and programs of them run alike each time."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import reduce
from operator import itemgetter
from typing import Any

import pytest

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.stateful_programs.rows import PythonValue, draw_calls, list_types, load_values

Size = namedtuple("Size", "rows columns")
NAMES: dict[str, Any] = {
    **{each.__name__: each for each in (OrderedDict, defaultdict, deque, Counter, Size)},
    "copy": copy,
    "itertools": itertools,
    "math": math,
    "itemgetter": itemgetter,
    "reduce": reduce,
}


def test_every_type_of_python_has_calls() -> None:
    assert {"list", "dict", "set", "str", "int", "float", "tuple", "range", "deque", "OrderedDict"} <= set(
        list_types().values()
    )
    assert sum(len(row.calls) for row in load_values()) > 1500


@pytest.mark.parametrize("row", load_values(), ids=lambda row: f"{row.type}-{row.value}")
def test_a_call_raises_and_changes_what_the_table_says(row: PythonValue) -> None:
    for call in row.calls:
        names = {**NAMES, "value": eval(row.value, dict(NAMES))}
        before = repr(names["value"])
        raised = None
        try:
            exec(call.line.replace("{o}", "value"), names)
        except Exception as error:
            raised = type(error).__name__
        assert raised == call.raises, call
        assert call.changes or repr(names["value"]) == before, call


@pytest.mark.parametrize("kind", list_types().values())
def test_what_is_drawn_of_a_type_runs_and_keeps_its_results(kind: str) -> None:
    class Model:
        pass

    randomness = random.Random(kind)

    def draw(strategy: Any) -> int:
        return randomness.randint(strategy.wrapped_strategy.start or 0, strategy.wrapped_strategy.end)

    for _ in range(40):
        row = draw_calls(Pen(draw, {}), kind)
        names = {**NAMES, "self": Model(), "x": 0}
        exec("\n".join((*row.module, *row.init)), names)
        exec("\n".join(row.read), names)
        found = getattr(names["self"], f"found_{kind.lower()}")
        assert names["x"] > 0 and type(found) is str, row.read
