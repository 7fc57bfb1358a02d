"""Bits are compared: zeros of other signs and payloads of NaN are counted apart from values."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.diagnosis.bitwise.bit_difference import compare_bits
from fuzzcompile.diagnosis.bitwise.execution import take_row_of_value

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def nan_with(payload: int) -> torch.Tensor:
    return torch.tensor([0x7FC00000 + payload], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_equal_bits_are_no_difference(dtype):
    value = torch.arange(-4, 5).to(dtype)
    assert compare_bits("out", value, value.clone()) is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("start", [1.0, -1.0, 0.0])
def test_the_next_number_is_an_ulp_away(dtype, start):
    value = torch.tensor([start, 2.0], dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    moved = value.clone()
    moved.view(bits)[0] += 1
    apart = compare_bits("out", value, moved)
    assert apart is not None
    assert (apart.differing, apart.elements, apart.max_ulps) == (1, 2, 1)


def test_ulps_are_counted_across_zero():
    tiny = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    apart = compare_bits("out", torch.tensor([-tiny]), torch.tensor([tiny]))
    assert apart is not None
    assert apart.max_ulps == 2


def test_signs_of_zeros_differ_and_are_told():
    apart = compare_bits("out", torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]))
    assert apart is not None
    assert (apart.differing, apart.zero_signs, apart.only_zero_signs, apart.only_payloads) == (1, 1, True, False)


def test_payloads_of_nan_differ_and_are_told():
    apart = compare_bits("out", nan_with(0), nan_with(1))
    assert apart is not None
    assert (apart.differing, apart.nan_payloads, apart.only_payloads, apart.max_ulps) == (1, 1, True, None)


def test_a_nan_in_place_of_a_number_is_no_payload():
    apart = compare_bits("out", torch.tensor([1.0]), nan_with(0))
    assert apart is not None
    assert not apart.only_payloads


def test_complex_parts_are_compared():
    apart = compare_bits("out", torch.tensor([1 + 0j]), torch.tensor([complex(1, -0.0)]))
    assert apart is not None
    assert apart.zero_signs == 1


def test_another_dtype_differs_as_a_whole():
    apart = compare_bits("out", torch.ones(3), torch.ones(3, dtype=torch.bfloat16))
    assert apart is not None
    assert (apart.differing, apart.max_ulps) == (3, None)


@pytest.mark.parametrize(
    ("batch", "alone", "wanted"),
    [
        ((4, 3), (1, 3), (1, 3)),
        ((8, 3), (2, 3), (2, 3)),  # the sequence was folded into the batch
        ((5, 4, 3), (5, 1, 3), (5, 1, 3)),
        ((7, 3), (7, 3), (7, 3)),  # no sample enters it
        ((4, 3), (3,), (3,)),
        ((4, 3), (2, 3), None),
        ((4, 6), (1, 3), None),
    ],
)
def test_the_part_of_a_row(batch, alone, wanted):
    value = torch.arange(torch.Size(batch).numel(), dtype=torch.float32).view(batch)
    part = take_row_of_value(value, torch.zeros(alone), 4, 2)
    assert (part is None) if wanted is None else (part is not None and part.shape == wanted)


def test_the_row_that_was_asked_for():
    value = torch.arange(12.0).view(4, 3)
    part = take_row_of_value(value, torch.zeros(1, 3), 4, 2)
    assert part is not None
    assert part.tolist() == [[6.0, 7.0, 8.0]]
