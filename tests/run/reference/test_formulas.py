"""Each formula beside the kernel of its operator: both mean the same, in each form that the formula is made for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from fuzzcompile.compiler.operators.second_reference import SecondReference
from fuzzcompile.run.reference.formulas import FORMULAS
from fuzzcompile.run.reference.polynomials import POLYNOMIALS

aten = torch.ops.aten


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y, Z = numbers(3, 4), numbers(3, 4, seed=1), numbers(3, 4, seed=2)
PLUS, UNIT = X.abs() + 0.5, torch.tanh(X)
WHOLE, OTHER = torch.arange(-6, 6).reshape(3, 4), torch.arange(12).reshape(3, 4) % 5 - 2
ODD = OTHER * 2 + 1
TRUE, FALSE = X > 0, Y > 0
INDEX = torch.tensor([[0, 2, 1, 1], [2, 0, 0, 1]])
PLACES = torch.tensor([[0, 2, 1, 1], [2, 0, 0, 2]])
VOLUME = numbers(1, 2, 3, 3, 4)
IMAGE, W, B = numbers(2, 4, 3, 3), numbers(4, seed=3), numbers(4, seed=4)
GRAD = numbers(2, 4, 3, 3, seed=5)
_, POOLED = aten.max_pool2d_with_indices(IMAGE, [2, 2], [1, 1])
_, ADAPTED = aten.adaptive_max_pool2d(IMAGE, [2, 2])
_, MEAN, SCALE = aten.native_batch_norm(IMAGE, W, B, None, None, True, 0.1, 1e-5)
LAYER = aten.native_layer_norm(X, [4], W, B, 1e-5)
GROUP = aten.native_group_norm(IMAGE, W, B, 2, 4, 9, 2, 1e-5)
ORDERS = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
SOFT, LOG = torch.softmax(X, 1), torch.log_softmax(X, 1)

# Calls by the name of the formula: every form that differs in what it means.
CALLS = {
    **{name: [lambda name=name: getattr(aten, name)(X)] for name in (
        "exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "neg", "abs", "sign",
        "floor", "ceil", "trunc", "isnan", "isinf", "erf", "erfc", "sigmoid", "reciprocal", "relu", "silu", "mish",
        "hardsigmoid", "hardswish", "gelu",
    )},
    **{name: [lambda name=name: getattr(aten, name)(PLUS)] for name in (
        "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
    )},
    **{name: [lambda name=name: getattr(aten, name)(UNIT)] for name in ("asin", "acos", "atanh")},
    "acosh": [lambda: aten.acosh(PLUS + 1)],
    "logical_not": [lambda: aten.logical_not(WHOLE)],
    "bitwise_not": [lambda: aten.bitwise_not(WHOLE), lambda: aten.bitwise_not(TRUE)],
    **{name: [
        lambda name=name: getattr(aten, name)(X, ORDERS), lambda name=name: getattr(aten, name)(UNIT, 5.0),
        lambda name=name: getattr(aten, name)(0.3, ORDERS),
    ] for name in POLYNOMIALS},
    "round": [lambda: aten.round(X * 3), lambda: aten.round(torch.tensor([0.5, 1.5, -2.5], dtype=torch.float64)),
              lambda: aten.round(X, decimals=1)],
    "gelu": [lambda: aten.gelu(X), lambda: aten.gelu(X, approximate="tanh")],
    "leaky_relu": [lambda: aten.leaky_relu(X), lambda: aten.leaky_relu(X, 0.2)],
    "hardtanh": [lambda: aten.hardtanh(X), lambda: aten.hardtanh(X, -0.5, 0.2)],
    "clamp": [lambda: aten.clamp(X, -0.5, 0.5), lambda: aten.clamp(X, min=0.1), lambda: aten.clamp(X, X - 1, Y.abs())],
    "clamp_min": [lambda: aten.clamp_min(X, 0.1)],
    "clamp_max": [lambda: aten.clamp_max(X, 0.1)],
    "masked_fill": [lambda: aten.masked_fill(X, TRUE, 2.5), lambda: X.clone().masked_fill_(TRUE, -1.0)],
    **{name: [lambda name=name: getattr(aten, name)(X, Y)] for name in (
        "atan2", "maximum", "minimum", "fmax", "fmin", "fmod", "remainder", "hypot", "copysign",
    )},
    **{name: [lambda name=name: getattr(aten, name)(WHOLE, OTHER)] for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: [lambda name=name: getattr(aten, name)(TRUE, FALSE)] for name in (
        "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
    )},
    "mul": [lambda: aten.mul(X, Y), lambda: aten.mul(X, 3.0), lambda: X.clone().mul_(Y)],
    "pow": [lambda: aten.pow(PLUS, Y), lambda: aten.pow(X, 2), lambda: aten.pow(2.0, X)],
    "add": [lambda: aten.add(X, Y, alpha=2), lambda: aten.add(WHOLE, 3), lambda: X.clone().add_(Y)],
    "sub": [lambda: aten.sub(X, Y, alpha=2)],
    "rsub": [lambda: aten.rsub(X, Y, alpha=2)],
    "div": [lambda: aten.div(X, Y), lambda: aten.div(WHOLE, ODD), *(
        lambda mode=mode, a=a, b=b: aten.div(a, b, rounding_mode=mode)
        for mode in ("floor", "trunc") for a, b in ((X * 3, Y), (WHOLE, ODD))
    )],
    "where": [lambda: aten.where(TRUE, X, Y)],
    "lerp": [lambda: aten.lerp(X, Y, 0.3), lambda: aten.lerp(X, Y, Z)],
    "addcmul": [lambda: aten.addcmul(X, Y, Z, value=0.5)],
    "addcdiv": [lambda: aten.addcdiv(X, Y, PLUS, value=0.5)],
    **{name: [
        lambda name=name: getattr(aten, name)(X, [1]), lambda name=name: getattr(aten, name)(X, [0, 1], True),
    ] for name in ("sum", "mean", "amax", "amin")},
    **{name: [
        lambda name=name: getattr(aten, name)(X), lambda name=name: getattr(aten, name)(X, 1, True),
    ] for name in ("argmax", "argmin")},
    "prod": [lambda: aten.prod(X, 1), lambda: aten.prod(X)],
    "any": [lambda: aten.any(TRUE, 1), lambda: aten.any(TRUE)],
    "all": [lambda: aten.all(TRUE, 1), lambda: aten.all(TRUE)],
    "max": [lambda: aten.max(X), lambda: aten.max(X, 1)],
    "min": [lambda: aten.min(X), lambda: aten.min(X, 1, True)],
    "var": [lambda: aten.var(X, [1]), lambda: aten.var(X, [1], correction=0, keepdim=True), lambda: aten.var(X, False)],
    "std": [lambda: aten.std(X, [0])],
    "var_mean": [lambda: aten.var_mean(X, [1], correction=1)],
    "std_mean": [lambda: aten.std_mean(X, [1], correction=1)],
    "logsumexp": [lambda: aten.logsumexp(X, [1]), lambda: aten.logsumexp(X * 500, [0], True)],
    "linalg_vector_norm": [lambda: aten.linalg_vector_norm(X, 2), lambda: aten.linalg_vector_norm(X, 1, [0], True),
                           lambda: aten.linalg_vector_norm(X, float("inf"), [1])],
    "cumsum": [lambda: aten.cumsum(X, 1), lambda: aten.cumsum(WHOLE, 0)],
    "cumprod": [lambda: aten.cumprod(X, -1)],
    "sort": [lambda: aten.sort(X, 0), lambda: aten.sort(X, -1, True)],
    "_softmax": [lambda: aten._softmax(X * 50, 1, False)],
    "_log_softmax": [lambda: aten._log_softmax(X * 50, 0, False)],
    "mm": [lambda: aten.mm(X, Y.t())],
    "bmm": [lambda: aten.bmm(IMAGE[0], IMAGE[1])],
    "mv": [lambda: aten.mv(X, W)],
    "dot": [lambda: aten.dot(W, B)],
    "addmm": [lambda: aten.addmm(numbers(3, 3), X, Y.t(), beta=0.5, alpha=2), lambda: aten.addmm(
        torch.full((3, 3), 3.0, dtype=torch.float64), X, Y.t(), beta=0)],
    "baddbmm": [lambda: aten.baddbmm(IMAGE[0], IMAGE[0], IMAGE[1], alpha=3)],
    "addmv": [lambda: aten.addmv(numbers(3), X, W)],
    "gather": [lambda: aten.gather(X, 0, INDEX), lambda: aten.gather(X, -1, INDEX.clamp(max=1))],
    "index_select": [lambda: aten.index_select(X, 1, torch.tensor([3, 0, 3]))],
    "index": [lambda: X[INDEX[0], INDEX[1]], lambda: IMAGE[:, INDEX], lambda: IMAGE[INDEX[0] % 2, :, :, INDEX[1]]],
    "embedding": [lambda: aten.embedding(X, INDEX)],
    "embedding_dense_backward": [lambda: aten.embedding_dense_backward(numbers(2, 4, 5), INDEX, 3, -1, False),
                                 lambda: aten.embedding_dense_backward(numbers(2, 4, 5), INDEX, 3, 1, False)],
    "scatter_add": [lambda: aten.scatter_add(X, 0, INDEX, Y), lambda: X.clone().scatter_add_(1, INDEX, Y)],
    "index_add": [lambda: aten.index_add(X, 1, torch.tensor([0, 2, 0, 1]), Y, alpha=2)],
    "index_put": [lambda: aten.index_put(X, [torch.tensor([0, 2, 0])], numbers(3, 4), True),
                  lambda: aten.index_put(X, [None, torch.tensor([0, 2])], numbers(3, 2))],
    "flip": [lambda: aten.flip(IMAGE, [0, 2])],
    "roll": [lambda: aten.roll(IMAGE, [1, -2], [0, 3]), lambda: aten.roll(X, [3])],
    "cat": [lambda: aten.cat([X, Y], 1), lambda: aten.cat([torch.empty(0, dtype=torch.float64), X], 0)],
    "stack": [lambda: aten.stack([X, Y], 1)],
    "constant_pad_nd": [lambda: aten.constant_pad_nd(X, [1, 2, 0, 3], 0.5)],
    "tril": [lambda: aten.tril(X, 1)],
    "triu": [lambda: aten.triu(X, -1)],
    "repeat": [lambda: aten.repeat(X, [2, 1, 3])],
    "scatter": [lambda: aten.scatter(X, 0, PLACES, Y), lambda: X.clone().scatter_(1, PLACES[:, :2], 2.5)],
    "scatter_reduce": [
        lambda reduce=reduce, whole=whole: aten.scatter_reduce(X, 0, INDEX, Y, reduce, include_self=whole)
        for reduce in ("sum", "mean", "prod", "amax", "amin") for whole in (True, False)
    ],
    "masked_scatter": [lambda: aten.masked_scatter(X, TRUE, Y)],
    "topk": [lambda: aten.topk(X, 2, 1), lambda: aten.topk(X, 2, 0, False)],
    "nonzero": [lambda: aten.nonzero(TRUE), lambda: aten.nonzero(OTHER)],
    "_cdist_forward": [lambda p=p: aten._cdist_forward(IMAGE[:, :, 0], IMAGE[:, :2, 1], p, None)
                       for p in (2.0, 0.0, 1.0, 3.0, float("inf"))],
    "_pdist_forward": [lambda p=p: aten._pdist_forward(X, p) for p in (2.0, 1.0, float("inf"))],
    "_fft_r2c": [lambda how=how, one=one: aten._fft_r2c(IMAGE, [1, 2], how, one)
                 for how in (0, 1, 2) for one in (True, False)],
    "_fft_c2r": [lambda how=how: aten._fft_c2r(torch.complex(X, Y), [0, 1], how, 7) for how in (0, 1, 2)],
    "_fft_c2c": [lambda how=how, ahead=ahead: aten._fft_c2c(torch.complex(X, Y), [0, 1], how, ahead)
                 for how in (0, 1, 2) for ahead in (True, False)],
    "avg_pool2d": [lambda: aten.avg_pool2d(IMAGE, [2]), lambda: aten.avg_pool2d(IMAGE, [3, 2], [2], [1, 1], True),
                   lambda: aten.avg_pool2d(IMAGE[0], [2, 3], [1], [1], False, False),
                   lambda: aten.avg_pool2d(IMAGE, [2], [2], [1], True, False),
                   lambda: aten.avg_pool2d(IMAGE, [2], [2], [0], True, True, 3)],
    "avg_pool2d_backward": [
        lambda: aten.avg_pool2d_backward(numbers(2, 4, 2, 2), IMAGE, [2, 2], [1, 1], [0, 0], False, True, None),
        lambda: aten.avg_pool2d_backward(numbers(2, 4, 2, 2), IMAGE, [2, 2], [2, 2], [0, 0], True, False, None)],
    "avg_pool3d": [lambda: aten.avg_pool3d(VOLUME, [2], [1], [1])],
    "avg_pool3d_backward": [lambda: aten.avg_pool3d_backward(
        numbers(1, 2, 2, 2, 3), VOLUME, [2, 2, 2], [1, 1, 1], [0, 0, 0], False, True, None)],
    "_adaptive_avg_pool2d": [lambda: aten._adaptive_avg_pool2d(IMAGE, [2, 1])],
    "_adaptive_avg_pool2d_backward": [lambda: aten._adaptive_avg_pool2d_backward(numbers(2, 4, 2, 1), IMAGE)],
    "_adaptive_avg_pool3d": [lambda: aten._adaptive_avg_pool3d(VOLUME, [2, 3, 3])],
    "_adaptive_avg_pool3d_backward": [lambda: aten._adaptive_avg_pool3d_backward(numbers(1, 2, 2, 3, 3), VOLUME)],
    "convolution": [
        lambda: aten.convolution(IMAGE, numbers(6, 4, 2, 2), numbers(6), [1], [1], [1], False, [0], 1),
        lambda: aten.convolution(IMAGE, numbers(6, 2, 2, 1), None, [2, 1], [1, 0], [2, 1], False, [0, 0], 2),
        lambda: aten.convolution(IMAGE[:, :, 0], numbers(4, 1, 2), None, [1], [0], [1], False, [0], 4),
        lambda: aten.convolution(IMAGE, numbers(4, 3, 2, 2), numbers(6), [2, 2], [1, 0], [1, 1], True, [1, 0], 2),
        lambda: aten.convolution(VOLUME, numbers(3, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)],
    "convolution_backward": [
        lambda: aten.convolution_backward(numbers(2, 6, 4, 4), IMAGE, numbers(6, 4, 2, 2), [6], [1, 1], [1, 1], [1, 1],
                                          False, [0, 0], 1, [True, True, True]),
        lambda: aten.convolution_backward(numbers(2, 6, 2, 3), IMAGE, numbers(6, 2, 2, 1), [0], [2, 1], [1, 0], [2, 1],
                                          False, [0, 0], 2, [True, True, False])],
    "max_pool2d_with_indices_backward": [lambda: aten.max_pool2d_with_indices_backward(
        numbers(2, 4, 2, 2), IMAGE, [2, 2], [1, 1], [0, 0], [1, 1], False, POOLED)],
    "adaptive_max_pool2d_backward": [lambda: aten.adaptive_max_pool2d_backward(numbers(2, 4, 2, 2), IMAGE, ADAPTED)],
    "native_layer_norm": [lambda: aten.native_layer_norm(X, [4], W, B, 1e-5),
                          lambda: aten.native_layer_norm(IMAGE, [3, 3], None, None, 1e-3)],
    "native_layer_norm_backward": [lambda: aten.native_layer_norm_backward(
        Y, X, [4], LAYER[1], LAYER[2], W, B, [True, True, True])],
    "native_batch_norm": [lambda: aten.native_batch_norm(IMAGE, W, B, None, None, True, 0.1, 1e-5),
                          lambda: aten.native_batch_norm(IMAGE, W, None, B, W.abs() + 1, False, 0.1, 1e-5)],
    "native_batch_norm_backward": [
        lambda: aten.native_batch_norm_backward(
            GRAD, IMAGE, W, None, None, MEAN, SCALE, True, 1e-5, [True, True, True]),
        lambda: aten.native_batch_norm_backward(
            GRAD, IMAGE, None, B, W.abs() + 1, MEAN, SCALE, False, 1e-5, [True, True, True])],
    "native_group_norm": [lambda: aten.native_group_norm(IMAGE, W, B, 2, 4, 9, 2, 1e-5)],
    "native_group_norm_backward": [lambda: aten.native_group_norm_backward(
        GRAD, IMAGE, GROUP[1], GROUP[2], W, 2, 4, 9, 2, [True, True, True])],
    "mse_loss": [lambda: aten.mse_loss(X, Y), lambda: aten.mse_loss(X, Y, 2), lambda: aten.mse_loss(X, Y, 0)],
    "tanh_backward": [lambda: aten.tanh_backward(Y, UNIT)],
    "sigmoid_backward": [lambda: aten.sigmoid_backward(Y, PLUS / 9)],
    "threshold_backward": [lambda: aten.threshold_backward(Y, X, 0.1)],
    "gelu_backward": [lambda: aten.gelu_backward(Y, X), lambda: aten.gelu_backward(Y, X, approximate="tanh")],
    "silu_backward": [lambda: aten.silu_backward(Y, X)],
    "_softmax_backward_data": [lambda: aten._softmax_backward_data(Y, SOFT, 1, torch.float64)],
    "_log_softmax_backward_data": [lambda: aten._log_softmax_backward_data(Y, LOG, 1, torch.float64)],
}  # fmt: skip


def test_every_formula_is_called():
    assert set(CALLS) == set(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
def test_kernel_and_formula_agree_in_every_form(name: str, monkeypatch: pytest.MonkeyPatch):
    applied = []
    monkeypatch.setitem(
        FORMULAS, name, lambda call, formula=FORMULAS[name]: applied.append(formula(call)) or applied[-1]
    )
    with SecondReference(native=torch.float64) as mode:
        for call in CALLS[name]:
            before = len(applied)
            call()
            assert len(applied) > before and applied[-1] is not None, "the formula was asked, and had an answer"
    assert mode.contested == []


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_contests_a_result_that_is_off(name: str, monkeypatch: pytest.MonkeyPatch):
    """By 1 % of a floating result; whole numbers and truth values by one element that differs."""

    def off(value: object) -> object:
        if isinstance(value, tuple):
            return (off(value[0]), *value[1:])
        wrong = value * 1.01 + 0.01 if value.dtype.kind == "f" else value.copy()  # type: ignore[attr-defined]
        if value.dtype.kind != "f":  # type: ignore[attr-defined]
            wrong.flat[0] = ~wrong.flat[0] if value.dtype.kind == "b" else wrong.flat[0] + 1  # type: ignore[attr-defined]
        return wrong

    monkeypatch.setitem(FORMULAS, name, lambda call, formula=FORMULAS[name]: off(formula(call)))
    with SecondReference(native=torch.float64) as mode:
        CALLS[name][0]()
    (contested,) = mode.contested
    assert contested.opinion.by == "formula" and contested.kernel_is_wrong


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.softmax(torch.tensor([[-math.inf, 1.0], [-math.inf, -math.inf]], dtype=torch.float64), -1),
        lambda: torch.layer_norm(torch.tensor([[math.inf, 1.0, 2.0]], dtype=torch.float64), (3,)),
        lambda: torch.ops.aten.threshold_backward(X, X * math.nan, 0),
        lambda: torch.clamp(torch.zeros(3, dtype=torch.uint8), -3, 100),
        lambda: torch.ones(3, dtype=torch.uint64) * 2**62 * 3 + torch.ones(3, dtype=torch.float64),
    ],
    ids=["masked row", "infinity", "NaN", "below an unsigned dtype", "uint64"],
)
def test_what_is_a_convention_is_not_contested(call: Callable[[], object]):
    with SecondReference(native=torch.float64) as mode:
        call()
    assert mode.contested == []
