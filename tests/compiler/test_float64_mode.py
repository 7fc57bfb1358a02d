"""The float64 reference of programs that name lower precisions themselves."""

from __future__ import annotations

import programs
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuzzcompile.run.arithmetic_modes import Float64Mode, UlpNoise
from fuzzcompile.run.attention_backends import interpret_flex_attention

X = programs.tensors((4, 6), (6, 6))


def in_float64(function, *inputs: torch.Tensor, keep_casts: bool) -> tuple[torch.Tensor, bool]:
    mode = Float64Mode(keep_casts=keep_casts)
    with mode:
        result = function(*(tensor.double() for tensor in inputs))
    return result, mode.saw_cast


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def test_plain_program_is_computed_in_float64():
    def program(x, w):
        return (x @ w).softmax(-1)

    result, saw_cast = in_float64(program, *X, keep_casts=True)
    assert result.dtype == torch.float64
    assert not saw_cast
    assert distance(result, program(*(t.double() for t in X))) < 1e-15


SPELLINGS = {
    "to(dtype)": lambda x: x.to(torch.bfloat16).float() * 1.0,
    "to(dtype=)": lambda x: x.to(dtype=torch.bfloat16).to(dtype=torch.float32) * 1.0,
    "method": lambda x: x.bfloat16().float() * 1.0,
    "type": lambda x: x.type(torch.bfloat16).float() * 1.0,
    "half": lambda x: x.half().float() * 1.0,
    "sum(dtype=)": lambda x: x.to(torch.float16).sum(-1, dtype=torch.float32),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_low_precision_casts_are_kept_or_dropped(name: str):
    program = SPELLINGS[name]
    x = X[0]
    kept, saw_kept = in_float64(program, x, keep_casts=True)
    dropped, saw_dropped = in_float64(program, x, keep_casts=False)
    assert saw_kept
    assert saw_dropped
    assert kept.dtype == dropped.dtype == torch.float64
    assert distance(kept, program(x)) < 1e-5
    exact = x.double().sum(-1) if name == "sum(dtype=)" else x.double()
    assert distance(dropped, exact) == pytest.approx(0.0, abs=1e-14)
    assert distance(kept, dropped) > 1e-5


def test_cast_to_float32_rounds_nothing():
    result, saw_cast = in_float64(lambda x: x.to(torch.float32) / 3, X[0], keep_casts=True)
    assert not saw_cast
    assert torch.equal(result, X[0].double() / 3)


def test_hard_coded_dtypes_of_constants_are_widened():
    def program(x):
        mask = torch.zeros(6, dtype=torch.float32)
        weights = torch.arange(6, dtype=torch.bfloat16)
        return (x + mask) * weights / torch.full((), 3.0, dtype=torch.float16)

    result, _ = in_float64(program, X[0], keep_casts=True)
    assert torch.equal(result, X[0].double() * torch.arange(6).double() / 3)


@pytest.mark.parametrize("keep_casts", [True, False])
def test_autocast_region(keep_casts: bool):
    def program(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w)

    result, _ = in_float64(program, *X, keep_casts=keep_casts)
    exact = F.linear(*(t.double() for t in X))
    assert result.dtype == torch.float64
    assert distance(result, exact) < (0.1 if keep_casts else 1e-14)


def test_softmax_with_a_wider_result():
    result, _ = in_float64(lambda x: x.to(torch.bfloat16).softmax(-1, dtype=torch.float32), X[0], keep_casts=False)
    assert distance(result, X[0].double().softmax(-1)) < 1e-15


def test_integers_and_booleans_are_left_alone():
    seen = []

    def program(x):
        index = x.argmax(-1)
        chosen = x > 0
        seen.extend([index.dtype, chosen.dtype, (index.to(torch.int8) + 100).dtype])
        return torch.where(chosen, x, 0.0)

    result, _ = in_float64(program, X[0], keep_casts=True)
    assert seen == [torch.int64, torch.bool, torch.int8]
    assert torch.equal(result, X[0].double().relu())


@pytest.mark.parametrize("keep_casts", [True, False])
def test_backward_is_computed_in_float64(keep_casts: bool):
    w = nn.Parameter(X[1].double())

    def program(x):
        return (x.to(torch.bfloat16) @ w.to(torch.bfloat16)).float().softmax(-1)

    with Float64Mode(keep_casts=keep_casts):
        (program(X[0].double()) * X[0].double()).sum().backward()
    exact = X[1].double().requires_grad_()
    ((X[0].double() @ exact).softmax(-1) * X[0].double()).sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == torch.float64
    error = distance(w.grad, exact.grad)
    assert error < 1e-14 if not keep_casts else 1e-6 < error < 0.1


def test_in_place_writes_to_double_inputs_are_seen():
    x = torch.zeros(3, dtype=torch.float64)
    with Float64Mode(keep_casts=True):
        x.add_(torch.ones(3, dtype=torch.float32))
    assert x.tolist() == [1, 1, 1]


def filled(x):
    z = torch.zeros(4, 6)
    z.add_(x)
    return z


def causal(x):
    mask = torch.full((4, 4), float("-inf"))
    mask.triu_(1)
    return (x[:, :4] + mask).softmax(-1)


def written(x):
    z = torch.empty(4, 6)
    z[1:] = x[1:]
    z[0].copy_(x[0])
    torch.add(z, 1, out=z)
    return z


def drawn(x):
    return x * torch.rand(4, 6) + torch.randn(4, 6, dtype=torch.float32)


@pytest.mark.parametrize("program", [filled, causal, written, drawn], ids=lambda program: program.__name__)
def test_constants_that_are_written_into_and_random_numbers(program):
    torch.manual_seed(5)
    native = program(X[0])
    torch.manual_seed(5)
    result, _ = in_float64(program, X[0], keep_casts=True)
    assert result.dtype == torch.float64
    assert distance(result, native) < 1e-6


def test_writes_to_low_precision_tensors_from_outside_are_read_again():
    outside = torch.zeros(4, 6)

    def program(x):
        outside[1:] = x[1:]
        outside.t()[0] += 1
        return outside + 0.0

    native = program(X[0])
    outside.zero_()
    result, _ = in_float64(program, X[0], keep_casts=True)
    assert result.dtype == torch.float64
    assert distance(result, native) < 1e-6
    assert not outside.any()


def likes(x):
    return torch.rand_like(x) + torch.randn_like(x) + torch.rand_like(x, dtype=torch.float16)


def in_place(x):
    z = torch.empty_like(x)
    return z.normal_() + torch.empty_like(x).uniform_() + torch.empty_like(x).exponential_() + z.t().bernoulli_(0.3).t()


def by_probability(x):
    p = x.sigmoid()
    return torch.bernoulli(p) + torch.multinomial(p, 6, replacement=True) + torch.poisson(p)


def dropped(x):
    return F.dropout(x, 0.4) + torch.native_dropout(x, 0.4, True)[0]


@pytest.mark.parametrize("program", [likes, in_place, by_probability, dropped], ids=lambda program: program.__name__)
def test_random_numbers_are_those_of_the_native_dtype(program):
    torch.manual_seed(5)
    native = program(X[0])
    torch.manual_seed(5)
    result, saw_cast = in_float64(program, X[0], keep_casts=True)
    assert result.dtype == torch.float64
    assert distance(result, native) < 1e-3
    assert not saw_cast


def test_factories_without_a_dtype_compute_in_float64():
    with Float64Mode(keep_casts=True):
        made = torch.linspace(-1.2, 1.2, 100)
    assert made.dtype == torch.float64
    assert torch.equal(made, torch.linspace(-1.2, 1.2, 100, dtype=torch.float64))


@pytest.mark.parametrize("function", [torch.sin, lambda n: n / 3, lambda n: torch.special.laguerre_polynomial_l(n, 64)])
def test_floating_operators_of_whole_numbers_compute_in_float64(function):
    n = torch.tensor([-7, 3, 12])
    with Float64Mode(keep_casts=True):
        result = function(n)
    assert torch.get_default_dtype() is torch.float32
    assert distance(result, function(n.double())) == 0 != distance(function(n), function(n.double()))


def test_branches_of_a_condition_run_in_float64():
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.sin(x) * 2, torch.cos, (x,)) + 1

    x = torch.linspace(0.1, 1, 7)
    plain = program(x)
    torch._dynamo.reset()  # what it captured of the condition it captured without the mode
    with Float64Mode(keep_casts=True):
        wide = program(x.double())
    torch._dynamo.reset()
    with UlpNoise(1):
        moved = program(x)
    assert torch.equal(wide, torch.sin(x.double()) * 2 + 1)
    assert not torch.equal(moved, plain) and torch.allclose(moved, plain, rtol=1e-5)


def test_a_draw_in_the_dtype_of_a_tensor_is_the_programs_own():
    def drop_path(x):
        return x + torch.rand(3, 1, dtype=x.dtype, device=x.device).add(0.5).floor()

    x = torch.randn(3, 4)
    torch.manual_seed(0)
    expected = drop_path(x)
    torch.manual_seed(0)
    with Float64Mode(keep_casts=True, native=torch.float32):
        exact = drop_path(x.double())
    assert exact.dtype == torch.float64 and torch.equal(exact.float(), expected)


def test_bits_of_integers_are_read_in_the_dtype_that_the_program_names():
    """A float64 has other bits than a float16: weights in blocks of bytes are read so."""
    blocks = torch.tensor([[0x00, 0x3C], [0x00, 0x40]], dtype=torch.uint8)
    with Float64Mode(keep_casts=False):
        scales = blocks.view(torch.float16)
        back = (scales * 1).to(torch.float32).view(torch.int32)
    assert scales.dtype == torch.float64
    assert scales.flatten().tolist() == [1.0, 2.0]
    assert back.flatten().tolist() == [0x3F800000, 0x40000000]


@pytest.mark.parametrize("grad", [False, True])
def test_a_bias_of_flex_attention_by_distance_is_computed(grad: bool):
    """Its product of integers and a number is promoted: the number, as a tensor of that dtype already, stays one."""
    from torch.nn.attention.flex_attention import flex_attention

    def biased(score, batch, head, row, column):
        return score - (row - column).abs() * 0.25 * slope

    # On a CPU, torch refuses queries that require gradients, but no slopes.
    query, slope = torch.randn(1, 1, 4, 16, dtype=torch.float64), torch.tensor(0.5).double().requires_grad_(grad)
    with torch.set_grad_enabled(grad), interpret_flex_attention(), Float64Mode(keep_casts=True):
        attended = flex_attention(query, query, query, score_mod=biased)
    distance = torch.arange(4)[:, None] - torch.arange(4)
    scores = query @ query.transpose(-1, -2) / 4 - distance.abs() * 0.25 * slope
    expected = scores.softmax(-1) @ query
    assert attended.dtype == torch.float64 and torch.allclose(attended, expected)
    if grad:
        gradients = [torch.autograd.grad((each * each).sum(), slope)[0] for each in (attended, expected)]
        assert torch.allclose(*gradients)
