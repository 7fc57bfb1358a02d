"""Detours through one function: each runs in eager in every dtype and rank, with its gradient; what is refused, is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fuzzcompile.generation.near_misses import functions
from fuzzcompile.generation.near_misses.detour_registry import detour_of
from fuzzcompile.generation.spec import Choice, Part


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


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((torch.float32, shape) for shape in SHAPES), (torch.bfloat16, SHAPES[0]), (torch.float16, SHAPES[1])],
)
def test_functions_keep_shape_and_dtype_and_have_a_gradient(dtype: torch.dtype, shape: tuple[int, ...]):
    forms = (functions.SAME_FORM[0], *functions.OTHER_FORM)
    parts = [part_of("elementwise", function=f, parameter=0.5, scale=4.0) for f in functions.ELEMENTWISE]
    parts += [part_of("along", function=f, transposed=t) for f in functions.ALONG for t in (False, True)]
    parts += [
        part_of("of_two", function=f, other=form, swapped=swapped)
        for f in functions.OF_TWO
        for form in (functions.SAME_FORM if functions.needs_alike(f) else forms)
        for swapped in (False, True)
    ]
    for part in parts:
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


@pytest.mark.parametrize("call", functions.REFUSED)
def test_eager_refuses(call: str):
    for shape in SHAPES:
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            applied(part_of("refused", call=call), torch.float32, shape)
