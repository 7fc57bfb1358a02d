"""Operators that only a GPU has, computed on the CPU: against other formulations and autograd, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from fuzzcompile.compiler.target.graph_placement import explain_no_reference, find_cpu_reference
from fuzzcompile.run.arithmetic_modes import Float64Mode

ATEN = torch.ops.aten
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def computed(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    reference = find_cpu_reference(operator)
    assert reference is not None
    assert explain_no_reference(operator) is None
    return reference(*args, **kwargs)


def gradients(output: torch.Tensor, grad: torch.Tensor, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(output, inputs, grad))


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(list(actual), list(expected), **CLOSE)


# -- another dtype for the result -------------------------------------------------------------------


@pytest.mark.parametrize(("operator", "batch"), [(ATEN.mm.dtype, ()), (ATEN.bmm.dtype, (3,))])
def test_a_product_is_accumulated_in_the_dtype_of_its_result(operator: Any, batch: tuple[int, ...]) -> None:
    left, right = tensor(*batch, 4, 512, dtype=torch.float16), tensor(*batch, 512, 5, seed=1, dtype=torch.float16)
    result = computed(operator, left, right, torch.float32)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), left.double() @ right.double(), rtol=1e-4, atol=1e-4)
    assert not torch.equal(result, (left @ right).float())


@pytest.mark.parametrize(("operator", "batch"), [(ATEN.addmm.dtype, ()), (ATEN.baddbmm.dtype, (3,))])
def test_a_sum_with_a_product_takes_its_factors(operator: Any, batch: tuple[int, ...]) -> None:
    added, left, right = tensor(5), tensor(*batch, 4, 6, seed=1), tensor(*batch, 6, 5, seed=2)
    result = computed(operator, added, left, right, torch.float64, beta=0.5, alpha=-2)
    torch.testing.assert_close(result, 0.5 * added - 2 * (left @ right), **CLOSE)
    ignored = computed(operator, torch.full_like(added, torch.nan), left, right, out_dtype=torch.float64, beta=0)
    torch.testing.assert_close(ignored, left @ right, **CLOSE)


@pytest.mark.parametrize(
    ("operator", "composite"), [(ATEN._softmax.default, torch.softmax), (ATEN._log_softmax.default, torch.log_softmax)]
)
def test_softmax_of_half_precision_may_be_float32(operator: Any, composite: Any) -> None:
    values = tensor(3, 5, dtype=torch.float16)
    assert torch.equal(computed(operator, values, -1, True), composite(values.float(), -1))
    assert computed(operator, values, -1, False).dtype == torch.float16


@pytest.mark.parametrize(
    ("operator", "composite"),
    [
        (ATEN._softmax_backward_data.default, torch.softmax),
        (ATEN._log_softmax_backward_data.default, torch.log_softmax),
    ],
)
def test_the_gradient_of_such_a_softmax_is_half_precision(operator: Any, composite: Any) -> None:
    values, grad = tensor(3, 5).requires_grad_(), tensor(3, 5, seed=1)
    output = composite(values, -1)
    (expected,) = gradients(output, grad, [values])
    torch.testing.assert_close(computed(operator, grad, output.detach(), -1, torch.float64), expected, **CLOSE)
    assert computed(operator, grad.float(), output.detach().float(), -1, torch.float16).dtype == torch.float16


# -- normalizations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_that_of_the_functional_interface(training: bool) -> None:
    values, weight, bias = tensor(4, 3, 5), tensor(3, seed=1), tensor(3, seed=2)
    mean, variance = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    expected_mean, expected_variance = mean.clone(), variance.clone()
    expected = functional.batch_norm(values, expected_mean, expected_variance, weight, bias, training, 0.1, 1e-5)
    output, *rest = computed(ATEN.cudnn_batch_norm.default, values, weight, bias, mean, variance, training, 0.1, 1e-5)
    close((output, mean, variance), (expected, expected_mean, expected_variance))
    assert len(rest) == 3
    assert len(computed(ATEN.miopen_batch_norm.default, values, weight, bias, mean, variance, False, 0.1, 1e-5)) == 3


def test_the_gradients_of_batch_norm_are_those_of_autograd() -> None:
    inputs = [tensor(4, 3, 5).requires_grad_(), tensor(3, seed=1).requires_grad_(), tensor(3, seed=2).requires_grad_()]
    values, weight, bias = inputs
    grad = tensor(4, 3, 5, seed=3)
    expected = gradients(functional.batch_norm(values, None, None, weight, bias, True, 0.1, 1e-5), grad, inputs)
    with torch.no_grad():
        forward = computed(ATEN.cudnn_batch_norm.default, *inputs, None, None, True, 0.1, 1e-5)
        statistics = (None, None, forward[1], forward[2])
        backward = ATEN.cudnn_batch_norm_backward.default
        close(computed(backward, values, grad, weight, *statistics, 1e-5, forward[3]), expected)
        close(computed(ATEN.miopen_batch_norm_backward.default, values, grad, weight, *statistics, 1e-5), expected)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_gradients_of_rms_norm_are_those_of_autograd(weighted: bool) -> None:
    values, weight = tensor(2, 3, 4, 5).requires_grad_(), tensor(4, 5, seed=1).requires_grad_() if weighted else None
    grad = tensor(2, 3, 4, 5, seed=2)
    output = functional.rms_norm(values, [4, 5], weight, 1e-6)
    expected = gradients(output, grad, [values] if weight is None else [values, weight])
    with torch.no_grad():
        rstd = torch.rsqrt(values.square().mean((2, 3), keepdim=True) + 1e-6)
        operator = ATEN._fused_rms_norm_backward.default
        results = computed(operator, grad, values, [4, 5], rstd, weight, [True, weighted])
    close([result for result in results if result is not None], expected)


def test_masked_scale_drops_and_scales() -> None:
    values, mask = tensor(6), torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.uint8)
    torch.testing.assert_close(computed(ATEN._masked_scale.default, values, mask, 1.25), values * mask * 1.25)


# -- convolutions and samplers ----------------------------------------------------------------------


PLAIN = ([1, 1], [2, 1], [1, 2])  # padding, stride, dilation


def test_convolutions_are_those_of_the_functional_interface() -> None:
    values, weight, bias = tensor(2, 4, 7, 8), tensor(6, 2, 3, 3, seed=1), tensor(6, seed=2)
    padding, stride, dilation = PLAIN
    plain = functional.conv2d(values, weight, None, stride, padding, dilation, 2)
    biased = functional.conv2d(values, weight, bias, stride, padding, dilation, 2)
    other, order = tensor(*plain.shape, seed=3), (stride, padding, dilation, 2)
    choices = (False, True, True)
    pairs = [
        (computed(ATEN.cudnn_convolution.default, values, weight, *PLAIN, 2, *choices), plain),
        (computed(ATEN.miopen_convolution.default, values, weight, bias, *PLAIN, 2, *choices[:2]), biased),
        (computed(ATEN.cudnn_convolution_relu.default, values, weight, bias, *order), biased.relu()),
        (
            computed(ATEN.cudnn_convolution_add_relu.default, values, weight, other, 0.5, bias, *order),
            (biased + 0.5 * other).relu(),
        ),
        (
            computed(ATEN.miopen_convolution_add_relu.default, values, weight, other, None, bias, *order),
            (biased + other).relu(),
        ),
    ]
    close(*zip(*pairs, strict=True))


def test_transposed_and_depthwise_convolutions_too() -> None:
    values, weight = tensor(2, 4, 5, 6), tensor(4, 3, 3, 3, seed=1)
    transposed = computed(
        ATEN.cudnn_convolution_transpose.default, values, weight, [1, 1], [1, 0], [2, 1], [1, 1], 1, False, True, True
    )
    depthwise, bias = tensor(4, 1, 3, 3, seed=2), tensor(4, seed=3)
    single = computed(ATEN._conv_depthwise2d.default, values, depthwise, [3, 3], bias, [1, 1], [1, 1], [1, 1])
    expected = functional.conv_transpose2d(values, weight, None, [2, 1], [1, 1], [1, 0])
    close((transposed, single), (expected, functional.conv2d(values, depthwise, bias, 1, 1, 1, 4)))


def test_the_sampler_aligns_corners() -> None:
    values, grid = tensor(2, 3, 4, 5).requires_grad_(), (tensor(2, 6, 7, 2, seed=1) / 2).requires_grad_()
    expected = functional.grid_sample(values, grid, "bilinear", "zeros", align_corners=True)
    grad = tensor(2, 3, 6, 7, seed=2)
    wanted = gradients(expected, grad, [values, grid])
    with torch.no_grad():
        close([computed(ATEN.cudnn_grid_sampler.default, values, grid)], [expected])
        close(computed(ATEN.cudnn_grid_sampler_backward.default, values, grid, grad), wanted)


# -- cells ------------------------------------------------------------------------------------------


def cell(gates: int, states: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Input and states (3, 4), weights and biases of a cell, all of which require gradients."""
    values = [tensor(3, 4, seed=seed).requires_grad_() for seed in range(1 + states)]
    weights = [tensor(gates * 4, 4, seed=seed).requires_grad_() for seed in (5, 6)]
    biases = [tensor(gates * 4, seed=seed).requires_grad_() for seed in (7, 8)]
    return values, weights, biases


def products(values: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value @ weight.T for value, weight in zip(values, weights, strict=False)]


@pytest.mark.parametrize("biased", [True, False])
def test_a_fused_lstm_cell_is_the_cell_of_the_cpu(biased: bool) -> None:
    (value, hx, cx), weights, biases = cell(4, 2)
    expected = torch.lstm_cell(value, [hx, cx], *weights, *(biases if biased else []))
    gates = [gate.detach().requires_grad_() for gate in products((value, hx), weights)]
    given = biases if biased else []
    results = computed(ATEN._thnn_fused_lstm_cell.default, *gates, cx, *given)
    close(results[:2], expected)
    grads = tensor(3, 4, seed=9), tensor(3, 4, seed=10)
    wanted = torch.autograd.grad(results[:2], [gates[0], cx, *given[:1]], grads)
    with torch.no_grad():
        state = cx, results[1], results[2]
        backward = computed(ATEN._thnn_fused_lstm_cell_backward_impl.default, *grads, *state, biased)
        close([grad for grad in backward if grad is not None], wanted)
        alone = computed(ATEN._thnn_fused_lstm_cell_backward_impl.default, None, grads[1], *state, biased)
        close(alone[1:2], [grads[1] * results[2].chunk(4, 1)[1]])


@pytest.mark.parametrize("biased", [True, False])
def test_a_fused_gru_cell_is_the_cell_of_the_cpu(biased: bool) -> None:
    (value, hx), weights, biases = cell(3, 1)
    given = biases if biased else []
    expected = torch.gru_cell(value, hx, *weights, *given)
    gates = [gate.detach().requires_grad_() for gate in products((value, hx), weights)]
    output, workspace = computed(ATEN._thnn_fused_gru_cell.default, *gates, hx, *given)
    close([output], [expected])
    grad = tensor(3, 4, seed=9)
    wanted = torch.autograd.grad(output, [*gates, hx, *given], grad)
    with torch.no_grad():
        backward = computed(ATEN._thnn_fused_gru_cell_backward.default, grad, workspace, biased)
    close([result for result in backward if result is not None], wanted)


# -- what the CPU runs, and what nothing runs -------------------------------------------------------


def test_references_compute_in_float64_too() -> None:
    left, right = tensor(4, 6, dtype=torch.float16), tensor(6, 5, seed=1, dtype=torch.float16)
    with Float64Mode(keep_casts=False):
        result = computed(ATEN.mm.dtype, left.double(), right.double(), torch.float32)
        softmax = computed(ATEN._softmax.default, left.double(), -1, True)
    assert result.dtype == softmax.dtype == torch.float64
    torch.testing.assert_close(result, left.double() @ right.double(), **CLOSE)


@pytest.mark.parametrize("operator", [ATEN.mm.default, ATEN._indices.default, torch.add, "relu"])
def test_the_cpu_runs_its_own_operators(operator: object) -> None:
    assert find_cpu_reference(operator) is None
    assert explain_no_reference(operator) is None


def test_attention_kernels_have_their_stand_ins() -> None:
    query = tensor(1, 2, 3, 8)
    output = computed(ATEN._scaled_dot_product_cudnn_attention.default, query, query, query, None, False)[0]
    torch.testing.assert_close(output, functional.scaled_dot_product_attention(query, query, query), **CLOSE)


def test_moving_to_the_device_changes_nothing() -> None:
    value = tensor(3)
    assert computed(torch.ops.prims.device_put.default, value, torch.device("cpu")) is value


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (ATEN._weight_int4pack_mm.default, "layout of its packed weights"),
        (ATEN._cudnn_rnn.default, "layout of its weights"),
        (ATEN._flash_attention_forward.default, "no reference"),
    ],
)
def test_what_has_no_reference_gets_a_reason(operator: object, reason: str) -> None:
    assert find_cpu_reference(operator) is None
    said = explain_no_reference(operator)
    assert said is not None
    assert reason in said
