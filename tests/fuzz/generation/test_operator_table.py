"""The table of torch's operators: its calls keep the form of a value, and refused calls are refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fuzzcompile.fuzz.generation.spec import Pen
from fuzzcompile.fuzz.operator_programs.numerics import TableOperator, draw_call, load_operator_table
from fuzzcompile.fuzz.worker_description import list_lacking

TABLE = load_operator_table()
FORMS = [(torch.float32, (2, 3, 4)), (torch.bfloat16, ()), (torch.float16, (5,)), (torch.float32, (2, 1, 3, 4))]
ROWS = [(torch.float32, (2, 3, 4)), (torch.bfloat16, (3, 1, 2)), (torch.float16, (2, 5, 6))]


def made(call: str, **names: torch.Tensor) -> Any:
    text = call.replace("{a}", "0.5")
    for name in names:
        text = text.replace(f"{{{name}}}", name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(text, {"torch": torch, "F": F, **names})


def check(operator: TableOperator, x: torch.Tensor, result: torch.Tensor) -> None:
    assert result.shape == x.shape, operator
    assert result.dtype == x.dtype or operator.cast, operator
    assert result.requires_grad or not operator.gradient, operator


@pytest.mark.parametrize("kind", ["elementwise", "of_two", "along"])
def test_a_call_keeps_the_form_of_its_value_and_has_a_gradient_where_the_table_says_so(kind: str):
    for number, operator in enumerate(getattr(TABLE, kind)):
        dtype, shape = (ROWS if kind == "along" else FORMS)[number % (3 if kind == "along" else 4)]
        x = torch.randn(shape).to(dtype).requires_grad_()
        y = (-x).detach() if operator.alike else x.detach().to(torch.int32)
        for call in operator.calls:
            check(operator, x, made(call, rows=x) if kind == "along" else made(call, x=x, y=y))


@pytest.mark.parametrize("extra", [0, 1, 4])
def test_a_result_of_another_form_has_the_form_that_the_table_says(extra: int):
    for operator in TABLE.reforming:
        sizes = [least + extra for least in operator.least]
        expected = tuple(size for (size,) in operator.find_shape(tuple((size,) for size in sizes)))
        x = torch.randn(sizes).to(torch.bfloat16).requires_grad_()
        for call in operator.calls:
            result = made(call, x=x)
            dtype = operator.dtype or "bfloat16"
            assert (tuple(result.shape), str(result.dtype)) == (expected, f"torch.{dtype}"), (call, sizes)
            assert result.requires_grad or not operator.gradient, call


def test_eager_refuses_the_refused_calls():
    for operator in TABLE.refused:
        for number, call in enumerate(operator.calls):
            with pytest.raises((RuntimeError, ValueError, IndexError)):
                made(call, x=torch.randn(FORMS[number % 4][1]))


def test_every_operator_has_a_name_by_which_it_can_be_ruled_out():
    assert len(TABLE.names) > 200
    assert {"torch.lerp", "F.gelu"} <= set(TABLE.names)
    pen = Pen(lambda strategy: 0, {row.name: 0 for row in TABLE.of_two if row.name != "torch.hypot"})
    assert draw_call(pen, TABLE.of_two)[0].name == "torch.hypot"


@pytest.mark.skipif(not torch.__version__.startswith(TABLE.torch), reason="the table was made from another torch")
def test_the_torch_of_the_table_lacks_none_of_its_operators():
    assert not set(TABLE.names) & set(list_lacking(None))
