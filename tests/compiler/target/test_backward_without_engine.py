"""Gradients by walking ``grad_fn`` nodes from Python, held against those of autograd's engine."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuzzcompile.compiler.target import cuda_dispatch


class Doubled(torch.autograd.Function):
    """Has an argument that is no tensor, a second output that nobody uses, and needs zeros for it."""

    @staticmethod
    def forward(ctx, factor, x):
        ctx.factor = factor
        return x * factor, x.sum()

    @staticmethod
    def backward(ctx, grad, grad_of_sum):
        return None, grad * ctx.factor + grad_of_sum


def attended(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def shared(q, k, v):
    """One value read many times, a broadcast, a cast, and an input that nothing depends on."""
    x = q + k[:, :1]
    return (x * x + x.double().sin().to(x.dtype)) @ q.transpose(-1, -2)


def written_in_place(q, k, v):
    x = q * 2
    x[:, 0] = k[:, 0].exp()
    return x.cumsum(-1) * v


def normalised(q, k, v):
    return F.layer_norm(q, (q.shape[-1],), k[0, 0, 0], v[0, 0, 0]).softmax(-1)


def through_a_function(q, k, v):
    return Doubled.apply(3.0, q)[0] * k + v


PROGRAMS = (attended, shared, written_in_place, normalised, through_a_function)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_they_are_those_of_the_engine(program, dtype):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 5, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    output = program(*inputs)
    start = torch.randn_like(output)
    wanted = torch.autograd.grad(output, inputs, start, allow_unused=True)
    actual = cuda_dispatch.compute_gradients([program(*inputs)], [start], inputs)
    for expected, walked in zip(wanted, actual, strict=True):
        assert (expected is None) == (walked is None)
        if expected is not None:
            assert walked.dtype == expected.dtype
            assert torch.equal(walked, expected)


def test_an_input_inside_the_graph_gets_the_gradient_that_arrives_there():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    inside = x.sin()
    output = inside.square().sum() + x.sum()
    (expected,) = torch.autograd.grad(inside.square().sum(), [inside])
    at_inside, at_x = cuda_dispatch.compute_gradients([output], [torch.ones((), dtype=torch.float64)], [inside, x])
    assert torch.equal(at_inside, expected)
    assert torch.equal(at_x, expected * x.detach().cos() + 1)


def test_several_outputs_of_a_module():
    torch.manual_seed(0)
    module = nn.LSTMCell(5, 7).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    inputs = list(module.parameters())
    starts = [torch.randn(3, 7, dtype=torch.float64) for _ in range(2)]
    wanted = torch.autograd.grad(module(x), inputs, starts)
    assert all(map(torch.equal, cuda_dispatch.compute_gradients(list(module(x)), starts, inputs), wanted))
