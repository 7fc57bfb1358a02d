"""Stochastic rounding: one ulp per operator, and nothing else moves."""

from __future__ import annotations

import programs
import pytest
import torch
import torch.nn.functional as F

from fuzzcompile.run.arithmetic_modes import UlpNoise


def noisy(function, *inputs: torch.Tensor, seed: int = 1):
    torch.manual_seed(3)
    with UlpNoise(seed):
        return function(*inputs)


def clean(function, *inputs: torch.Tensor):
    torch.manual_seed(3)
    return function(*inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_one_operator_moves_by_at_most_one_ulp(dtype: torch.dtype):
    x = programs.tensors((20, 20))[0].to(dtype)
    moved, exact = noisy(torch.sin, x), clean(torch.sin, x)
    apart = (moved.double() - exact.double()).abs()
    ulp = torch.finfo(dtype).eps * exact.double().abs() + torch.finfo(dtype).smallest_normal
    assert moved.dtype == dtype
    assert bool((apart > 0).any())
    assert bool((apart <= 1.5 * ulp).all())


def test_seed_decides_the_noise():
    (x,) = programs.tensors((20, 20))
    assert torch.equal(noisy(torch.sin, x, seed=1), noisy(torch.sin, x, seed=1))
    assert not torch.equal(noisy(torch.sin, x, seed=1), noisy(torch.sin, x, seed=2))


def test_random_stream_of_the_program_is_left_alone():
    (x,) = programs.tensors((20, 20))

    def program(x):
        dropped = F.dropout(torch.sin(x), 0.5, training=True)
        return dropped, torch.rand(3), torch.randn(3), torch.randint(0, 9, (4,))

    moved, exact = noisy(program, x), clean(program, x)
    assert torch.equal(moved[0] == 0, exact[0] == 0)
    assert all(torch.equal(a, b) for a, b in zip(moved[1:], exact[1:], strict=True))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with UlpNoise(1):
        torch.sin(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_masks_stay_exact():
    (x,) = programs.tensors((6, 6))

    def program(x):
        mask = torch.full((6, 6), float("-inf")).triu(1)
        scores = x + mask
        weights = scores.softmax(-1)
        return mask, scores, weights, weights * (mask == 0), x.relu(), x.masked_fill(x > 0, 0.0)

    for moved, exact in zip(noisy(program, x), clean(program, x), strict=True):
        assert torch.equal(moved == 0, exact == 0)
        assert torch.equal(torch.isinf(moved), torch.isinf(exact))
        assert not torch.isnan(moved).any()


def test_largest_numbers_do_not_become_infinite():
    largest = torch.full((100,), torch.finfo(torch.float32).max)
    assert torch.isfinite(noisy(lambda x: x * 1.0, largest)).all()


@pytest.mark.parametrize("move", [torch.clone, torch.t, lambda x: x[1:], lambda x: x.reshape(-1), torch.detach])
def test_moving_values_makes_no_noise(move):
    (x,) = programs.tensors((6, 6))
    assert torch.equal(noisy(move, x), clean(move, x))


def test_integers_stay_exact():
    x = torch.arange(10)
    assert torch.equal(noisy(lambda x: x * 3 // 2, x), x * 3 // 2)


def test_strides_are_kept():
    (x,) = programs.tensors((6, 4))
    assert noisy(torch.sin, x.t()).stride() == clean(torch.sin, x.t()).stride()


def test_gradients_are_perturbed_too():
    (x,) = programs.tensors((20, 20))

    def gradient(x):
        leaf = x.clone().requires_grad_()
        torch.sin(leaf).sum().backward()
        return leaf.grad

    moved, exact = noisy(gradient, x), clean(gradient, x)
    assert not torch.equal(moved, exact)
    assert torch.allclose(moved, exact)


def test_arithmetic_in_place_is_noisy_too():
    (x,) = programs.tensors((20, 20))

    def program(x):
        x = x.clone()
        x.mul_(1.1).add_(0.3)
        return x

    moved, exact = noisy(program, x), clean(program, x)
    assert not torch.equal(moved, exact)
    assert torch.allclose(moved, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "program",
    [
        lambda: (torch.tensor([9.7, 4.2, 29.9]) // torch.tensor([1.0, 1.0, 0.5])).long(),
        lambda: torch.tensor([1.0, 0, 1, 1, 1, 1, 1, 1]).cumsum(0).long(),
        lambda: torch.div(torch.tensor([7.0, -7.0]), 2, rounding_mode="floor").int(),
        lambda: (torch.arange(8.0) * 2).sum().long(),
        lambda: torch.fmod(torch.tensor([5.0, 9.0]), 3).long(),
        lambda: (torch.arange(16.0).view(4, 4) @ torch.ones(4, 4)).long(),
    ],
)
def test_results_without_rounding_stay_as_they_are(program):
    plain = program()
    for seed in range(4):
        with UlpNoise(seed):
            assert torch.equal(program(), plain)


def test_a_cast_of_what_the_integer_type_has_not_may_give_anything():
    source = torch.tensor([3.7, 300.0, float("inf"), float("nan"), -2.0])
    seen = set()
    for seed in range(3):
        with UlpNoise(seed):
            kept, *undefined, last = source.to(torch.int8).tolist()
        assert (kept, last) == (3, -2)
        seen.add(tuple(undefined))
    assert seen == {(0, 0, 0), (127, 127, 127), (-128, -128, -128)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_nan_that_is_computed_has_any_sign(dtype: torch.dtype):
    signs = set()
    for seed in range(2):
        with UlpNoise(seed):
            computed = torch.tensor([0.0, 1.0], dtype=dtype) / 0.0
            signs.add(bool(computed[0].signbit()))
            assert computed[0].isnan()
            assert computed[1] == float("inf")
            made = torch.fmod(computed[1], 2.0)
            signs.add(bool(made.signbit()))
            assert made.isnan()
    assert signs == {True, False}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_which_the_cpu_does_not_round_passes_through(dtype: torch.dtype):
    x = programs.tensors((4, 6))[0].to(dtype)

    def program(x):
        cache = torch.zeros(4, 8).to(dtype)
        cache[:, 1:7] = x
        return cache, x == x, torch.stack((x, x)).float()

    for moved, exact in zip(noisy(program, x), clean(program, x), strict=True):
        assert moved.dtype == exact.dtype and torch.equal(moved.float(), exact.float())


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(3, 4),
        lambda x: torch.empty_like(x),
        lambda x: x.new_empty(3, dtype=torch.int64),
        lambda x: torch.empty_strided((2,), (8,), dtype=torch.bool),
        lambda x: torch.empty(2, dtype=torch.complex64),
    ],
)
def test_memory_that_nobody_wrote_to_varies_by_seed(make):
    (x,) = programs.tensors((3, 4))
    first, again, other = (noisy(make, x, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.nan_to_num(7), again.nan_to_num(7)) if first.is_floating_point() else first.all()
    assert not torch.equal(first, other) and not other.any()
    assert torch.equal(noisy(lambda x: make(x).fill_(3), x), torch.full_like(first, 3)), "what is written stays"
