"""Operator programs: their types are those of eager mode, at the sizes of every call, and they are read as they run."""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fuzzcompile.fuzz.generation.cases import draw_case_at
from fuzzcompile.fuzz.generation.inputs import render_argument
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.operator_programs.numerics import CallGroup, choose_alternatives, load_call_groups
from fuzzcompile.fuzz.operator_programs.production import (
    DTYPES,
    PRODUCTIONS,
    ProgramValue,
    Scope,
    draw_argument,
    find_result_dtype,
    grow_program,
    promote_dtypes,
    promote_number,
)
from fuzzcompile.programs.edits.tensor_values import find_functions

FILLED = {"x": "x", "y": "y", "a": "a", "d": "device=x.device"}
# The sizes of two calls.
SIZES = {"x": ((2, 3), (4, 5), (6, 6)), "y": ((6, 6),)}


def pen(label: object) -> Pen:
    """Draws at random, without Hypothesis; the same for the same label."""
    randomness = random.Random(f"programs {label}")

    def draw(strategy: Any) -> int:
        return randomness.randint(strategy.wrapped_strategy.start or 0, strategy.wrapped_strategy.end)

    return Pen(draw, {})


def repeated(shape: Any, *values: float, dtype: torch.dtype) -> torch.Tensor:
    """The function that case files have under that name."""
    names: dict[str, Any] = {"torch": torch}
    exec("\n".join(find_functions(["repeated("])), names)
    made: torch.Tensor = names["repeated"](shape, *values, dtype=dtype)
    return made


def drawn(label: object, dtype: str, *, backward: bool = False) -> Scope:
    values = [ProgramValue("x", SIZES["x"], dtype, "x", gradient=backward), ProgramValue("y", SIZES["y"], "int64", "y")]
    return grow_program(pen(label), values, backward=backward, alters_inputs=True, returns=True)


def run(scope: Scope, call: int) -> dict[str, Any]:
    """All values of a program after that call."""
    torch.manual_seed(0)
    x = torch.randn([sizes[call] for sizes in SIZES["x"]]).to(getattr(torch, scope.values[0].dtype))
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "y": torch.randint(-4, 5, (6,))}
    names["x"] = x.requires_grad_() if scope.backward else x
    with torch.set_grad_enabled(scope.backward), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("\n".join(scope.statements), names)
    return names


@pytest.mark.parametrize(("dtype", "backward"), [("float32", False), ("float16", False), ("float32", True)])
def test_a_value_has_the_type_that_the_program_says(dtype: str, backward: bool):
    seen, refused = Counter[str](), 0
    for index in range(250):
        scope = drawn((dtype, backward, index), dtype, backward=backward)
        seen.update(scope.operators)
        for call in (0, 1):
            try:
                values = run(scope, call)
            except (RuntimeError, IndexError, ValueError):
                assert scope.refusable, scope.statements
                refused += 1
                break
            for value in scope.values:
                made, shape = values[value.name], tuple(sizes[call] for sizes in value.shape)
                assert (tuple(made.shape), str(made.dtype)) == (shape, f"torch.{value.dtype}"), value
                assert made.requires_grad or not value.gradient, value
    assert refused < 0.05 * 250
    assert set(seen) == set(PRODUCTIONS) - ({"write", "random_write"} if backward else set())


@pytest.mark.parametrize("group", load_call_groups(), ids=lambda group: group.name)
def test_eager_mode_takes_every_form_of_a_call(group: CallGroup):
    draws = pen(group.name)
    for form in group.calls * 6:
        arguments = (draw_argument(draws, "x", "float16") for _ in count())
        taken = (made for made in arguments if group.takes(ProgramValue("x", tuple(zip(made.shape)), made.dtype, "x")))
        x = eval(render_argument(made := next(taken), made.shape), {"torch": torch, "repeated": repeated})
        names = {"torch": torch, "F": F, "x": x.clone(), "y": x.flatten()[0].clone(), "a": x.flip([]).clone()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eval(re.sub(r"{(\w)}", lambda hole: FILLED[hole[1]], choose_alternatives(draws, form)), names)


def test_what_is_called_in_any_form_is_returned():
    cases = (draw_case_at(0, index, Profile()) for index in count())
    called = (case.spec.program for case in cases if case.spec.state is None and "called" in case.spec.operators)
    for program in (next(called) for _ in range(20)):
        made = {statement.partition(" = ")[0] for statement in program.statements}
        assert set(program.outputs) & made


@pytest.mark.parametrize("first", DTYPES)
def test_promotion_is_that_of_torch(first: str):
    def of(dtype: str, *shape: int) -> torch.Tensor:
        return torch.ones(shape, dtype=getattr(torch, dtype))

    for second in DTYPES:
        assert f"torch.{promote_dtypes(first, second)}" == str(torch.promote_types(of(first).dtype, of(second).dtype))
        scalar = find_result_dtype(ProgramValue("a", ((1,),), first, "a"), ProgramValue("b", (), second, "b"))
        assert f"torch.{scalar}" == str(torch.result_type(of(first, 1), of(second)))
    for number in (True, 2, 0.5):
        assert f"torch.{promote_number(first, number)}" == str(torch.result_type(of(first, 1), number))
