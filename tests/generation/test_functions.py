"""Detours through one function: each runs in eager in every dtype and rank, with its gradient; what is refused, is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses import functions
from fuzzcompile.generation.near_misses.detour_registry import detour_of
from fuzzcompile.generation.operator_table import drawn_call, operator_table
from fuzzcompile.generation.spec import Choice, Part
from fuzzcompile.worker.surroundings import lacking


def part_of(name: str, **choices: Choice) -> Part:
    return Part(name, tuple(choices.items()))


SHAPES = ((2, 3, 4), (1, 1, 2), (2, 2, 3, 4))


def applied(part: Part, dtype: torch.dtype, shape: tuple[int, ...], *, grad: bool = False) -> torch.Tensor:
    """What a detour makes of random numbers, after its backward."""
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "x": x.requires_grad_() * 1 if grad else x}
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(detour_of(part).statements("x", part, shape[-1]), names)
        if grad:
            names["x"].float().sum().backward()
    result: torch.Tensor = names["x"]
    return result


def test_a_call_of_the_table_keeps_shape_and_dtype_and_has_a_gradient_where_it_says_so():
    """The first call of each operator; the tool that makes the table tries all of them."""
    table = operator_table()
    parts = [part_of("elementwise", function=row.calls[0], parameter=0.5, scale=4.0) for row in table.elementwise]
    parts += [
        part_of("along", function=row.calls[0], transposed=bool(number % 2))
        for number, row in enumerate((*table.along, *functions.COMPOSED))
    ]
    for number, row in enumerate(table.of_two):
        forms = functions.SAME_FORM if row.alike else (*functions.SAME_FORM[:1], *functions.OTHER_FORM)
        form = forms[number % len(forms)]
        parts.append(part_of("of_two", function=row.calls[0], other=form, swapped=bool(number % 2)))
    cases = [(torch.float32, shape) for shape in SHAPES] + [(torch.bfloat16, SHAPES[0]), (torch.float16, SHAPES[1])]
    for number, part in enumerate(parts):
        dtype, shape = cases[number % len(cases)]
        for grad in (False, functions.has_gradient(part)):
            made = applied(part, dtype, shape, grad=grad)
            assert (made.shape, made.dtype) == (shape, dtype), part


@pytest.mark.parametrize("write", functions.WRITES)
def test_what_is_the_same_tensor_in_eager_shows_the_write(write: str):
    untouched = part_of("same_written", by="{x}.clone()", write=write)
    apart = applied(untouched, torch.float32, SHAPES[0])
    for expression in functions.SAME:
        shared = applied(part_of("same_written", by=expression, write=write), torch.float32, SHAPES[0])
        assert not torch.equal(shared, apart), expression


def test_eager_refuses_the_refused_calls():
    for row in operator_table().refused:
        for number, call in enumerate(row.calls):
            with pytest.raises((RuntimeError, ValueError, IndexError)):
                applied(part_of("refused", call=call), torch.float32, SHAPES[number % len(SHAPES)])


def test_every_operator_has_a_name_and_none_is_drawn_that_the_installed_torch_lacks():
    table = operator_table()
    names = table.names
    assert len(names) > 200
    assert {"torch.lerp", "F.gelu"} <= set(names)
    assert not any(name in names for name in lacking(None))  # the table was made from this torch
    pen = Pen(lambda strategy: 0, dict.fromkeys((row.name for row in table.of_two[1:]), 0))
    assert drawn_call(pen, table.of_two)[0] == table.of_two[0]
