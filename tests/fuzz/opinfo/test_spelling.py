"""Arguments as text: what the text gives is what was spelled."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.fuzz.opinfo_cases import Speller, UnusableSample, lay_out, make_extreme, write_tensor

BASE = torch.arange(24.0).view(2, 3, 4) / 2


def strided(size: tuple[int, ...], stride: tuple[int, ...], offset: int, values: torch.Tensor) -> torch.Tensor:
    return values.as_strided(size, stride, offset)


def read(text: str) -> torch.Tensor:
    names = {"torch": torch, "strided": strided, "inf": float("inf"), "nan": float("nan")}
    made: torch.Tensor = eval(text, names)
    return made


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE.to(torch.bfloat16),
        BASE.long(),
        BASE > 1,
        BASE.to(torch.complex64) * 1j,
        torch.tensor(2.5),
        torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
        torch.empty(0, 3),
        *(lay_out(BASE, layout) for layout in ("transposed", "expanded", "offset", "gaps")),
        lay_out(BASE[None], "channels_last"),
    ],
)
def test_a_tensor_keeps_dtype_shape_strides_offset_and_values(tensor: torch.Tensor):
    made = read(write_tensor(tensor))
    assert (made.dtype, made.shape, made.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert made.storage_offset() == tensor.storage_offset() or not tensor.numel()
    assert torch.equal(torch.nan_to_num(made), torch.nan_to_num(tensor))
    assert not made.is_floating_point() or torch.equal(torch.signbit(made), torch.signbit(tensor))


def test_layouts_differ_from_the_plain_one():
    forms = {
        (t.stride(), t.storage_offset()) for t in (lay_out(BASE, name) for name in ("transposed", "offset", "gaps"))
    }
    assert len(forms | {(BASE.stride(), 0)}) == 4
    assert lay_out(BASE, "channels_last") is BASE  # it has three dimensions


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.complex64, torch.int8, torch.uint8]
)
def test_extreme_values_survive_their_text(dtype: torch.dtype):
    plain = torch.ones(40).to(dtype)
    changed = make_extreme(plain, 0)
    assert write_tensor(changed) == write_tensor(make_extreme(plain, 0)) and changed.dtype == dtype
    assert 0 < int((changed == 1).sum()) < 40
    parts = torch.view_as_real(changed) if dtype.is_complex else changed
    if dtype.is_floating_point or dtype.is_complex:
        assert parts.isnan().any() and parts.isinf().any()
        made = read(write_tensor(changed))
        assert torch.equal(made.isfinite(), changed.isfinite()) and torch.equal(made.isnan(), changed.isnan())
    else:
        assert {torch.iinfo(dtype).max, torch.iinfo(dtype).bits} <= set(changed.tolist())


def test_values_without_extremes_stay():
    for tensor in (BASE > 1, torch.empty(0, 3), torch.ones(1000)):
        assert make_extreme(tensor, 0) is tensor


def test_many_values_are_drawn_in_the_range_of_the_sample():
    assert write_tensor(torch.linspace(-1, 3, 1000)).startswith("drawn((1000,), (1,), 0, torch.float32")
    assert "low=-1.0, high=3.0" in write_tensor(torch.linspace(-1, 3, 1000))


def test_a_tensor_that_comes_twice_is_one_variable():
    speller, x = Speller(gradients=True), torch.ones(2, requires_grad=True)
    assert speller.value([x, x, {"dim": (1,), "dtype": torch.int8}]) == "[x0, x0, {'dim': (1,), 'dtype': torch.int8}]"
    assert speller.tensors == {"x0": "torch.tensor([1.0, 1.0], dtype=torch.float32).requires_grad_()"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [(torch.eye(2).to_sparse(), "sparse_coo"), (torch.nn.ReLU(), "ReLU"), (torch.Generator(), "Generator")],
)
def test_what_has_no_text_says_of_what_kind_it_is(value: object, reason: str):
    with pytest.raises(UnusableSample, match=reason):
        Speller().value(value)
