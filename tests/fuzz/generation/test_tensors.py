"""Values and memory layouts: each does what it is called, for generated inputs and for those that a user made."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.programs.edits.tensor_values import LAYOUTS, VALUES, fill_expression, find_functions, join_sizes

SHAPE = (2, 3, 4, 5)
NORMAL = torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_gives_the_shape_and_keeps_the_values_of_a_given_input(name: str) -> None:
    layout = LAYOUTS[name]
    held = torch.randn(layout.base(SHAPE))
    fresh = eval(f"held{layout.view.format(shape=join_sizes(SHAPE))}", {"torch": torch, "held": held})
    x = torch.randn(SHAPE)
    moved = eval(layout.packed.format(x="x") + layout.view.format(shape="x.shape"), {"torch": torch, "x": x})
    for tensor in (fresh, moved):
        assert tensor.shape == SHAPE
        assert not tensor.is_contiguous() or tensor.storage_offset()
    assert torch.equal(moved, x[:1].expand(SHAPE) if name == "expanded" else x)


HOLDS = {
    "values_small": lambda x: 0 < x.abs().max() < 1e-5,
    "values_smaller": lambda x: 1e-5 < x.abs().max() < 1e-2,
    "values_large": lambda x: x.abs().max() > 1e3,
    "values_tied": lambda x: set(x.unique().tolist()) <= {-1.0, 0.0, 1.0},
    "values_nearly_tied": lambda x: 0 < (x - x.round()).abs().max() < 1e-4,
    "values_zero": lambda x: (x == 0).all(),
    "values_one": lambda x: (x == 1).all(),
    "values_minus_one": lambda x: (x == -1).all(),
    "values_nan": lambda x: x.isnan().sum() == 1,
    "values_infinite": lambda x: (x == torch.inf).sum() == 1,
    "values_minus_infinite": lambda x: (x == -torch.inf).sum() == 1,
    "values_denormal": lambda x: 0 < x.abs().max() < NORMAL,
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_what_they_are_called_and_leave_the_given_tensor_alone(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(SHAPE).transpose(1, 2)
    before = x.clone()
    expression = fill_expression(
        name,
        "x",
        "x.clone(memory_format=torch.contiguous_format)",
        shape="x.shape",
        like="x",
        option="",
        dtype="float32",
    )
    names = {"torch": torch, "x": x}
    for function in find_functions([expression]):
        exec(function, names)
    made = eval(expression, names)
    assert made.shape == x.shape and made.dtype == x.dtype
    assert HOLDS[name](made)
    assert torch.equal(x, before)
