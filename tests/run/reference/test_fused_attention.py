"""Stand-ins of fused attention kernels: against the CPU's kernel, autograd, and in replays of graphs that name them."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from attention_math import sdpa_math
from torch import fx

from fuzzcompile.compiler.graph_replay import replay_graph
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.reference import fused_attention

ATEN = torch.ops.aten
CPU, CPU_BACKWARD = (
    ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
# The kernels of GPUs, and whether they take a mask.
KERNELS = {
    "flash": (ATEN._scaled_dot_product_flash_attention, False),
    "efficient": (ATEN._scaled_dot_product_efficient_attention, True),
    "cudnn": (ATEN._scaled_dot_product_cudnn_attention, True),
    "overrideable": (ATEN._scaled_dot_product_fused_attention_overrideable, True),
}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def tensors(*, batch=2, heads=4, length=5, keys=7, width=8, key_heads=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    shapes = [(batch, heads, length, width), *[(batch, key_heads or heads, keys, width)] * 2]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def additive_mask(length=5, keys=7):
    mask = torch.randn(length, keys, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mask[1, 2:] = -math.inf
    return mask


def forward_arguments(name, query, key, value, *, mask=None, dropout=0.0, causal=False, scale=None):
    """Arguments of a GPU kernel's forward form, as a graph has them."""
    given = [query, key, value]
    if KERNELS[name][1]:
        given.append(mask)
    if name in ("efficient", "cudnn"):
        given.append(True)  # compute_log_sumexp
    given += [dropout, causal]
    if name != "efficient":
        given.append(False)  # return_debug_mask
    return tuple(given), {"scale": scale}


def backward_of(name):
    return getattr(ATEN, f"{KERNELS[name][0]._qualified_op_name.removeprefix('aten::')}_backward").default


def backward_arguments(name, query, key, value, results, tangent, *, mask, dropout, causal, scale):
    if name == "efficient":
        output, logsumexp, seed, offset = results
        given = (tangent, query, key, value, mask, output, logsumexp, seed, offset, dropout, [True] * 4, causal)
        return given, {"scale": scale}
    output, logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, _ = results
    common = (cum_q, cum_k, max_q, max_k, dropout, causal)
    given = {
        "flash": (tangent, query, key, value, output, logsumexp, *common, seed, offset),
        "cudnn": (tangent, query, key, value, output, logsumexp, seed, offset, mask, *common),
        "overrideable": (
            tangent, query, key, value, mask, [True] * 4, output, logsumexp, *common, seed, offset
        ),
    }[name]  # fmt: skip
    return given, {"scale": scale}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "masked row", "scale", "strided"])
def test_the_stand_in_of_the_cpus_kernel_agrees_with_it(kind, dtype):
    query, key, value = tensors(dtype=dtype)
    if kind == "strided":
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
    mask = additive_mask().to(dtype) if kind.startswith("mask") else None
    if kind == "masked row":
        mask[3] = -math.inf
    options = {"attn_mask": mask, "scale": 0.3 if kind == "scale" else None}
    causal = kind == "causal"
    theirs = CPU(query, key, value, 0.0, causal, **options)
    ours = fused_attention.find_stand_in(CPU)(query, key, value, 0.0, causal, **options)
    bound = {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, check_stride=True, **bound)
    tangent = torch.randn(query.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    given = (tangent, query, key, value, *theirs, 0.0, causal)
    expected = CPU_BACKWARD(*given, **options)
    for mine, other in zip(fused_attention.find_stand_in(CPU_BACKWARD)(*given, **options), expected, strict=True):
        torch.testing.assert_close(mine, other, check_stride=True, **bound)


def run_forward(name, inputs, **settings):
    torch.manual_seed(4)
    given, options = forward_arguments(name, *inputs, **settings)
    return fused_attention.find_stand_in(KERNELS[name][0].default)(*given, **options)


def check_backward(name, inputs, results, expected, settings):
    """The backward form on the forward form's results against gradients by autograd of ``expected``."""
    mask = settings["mask"]
    leaves = [*inputs, *([mask] if mask is not None else [])]
    tangent = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    by_autograd = torch.autograd.grad(expected, leaves, tangent)
    with torch.no_grad():
        given, options = backward_arguments(name, *inputs, results, tangent, **settings)
        gradients = fused_attention.find_stand_in(backward_of(name))(*given, **options)
    assert len(gradients) == len(backward_of(name)._schema.returns)
    for mine, other in zip(gradients, by_autograd, strict=False):
        torch.testing.assert_close(mine, other, **CLOSE)


@pytest.mark.parametrize("kind", ["plain", "causal", "scale", "mask", "grouped"])
@pytest.mark.parametrize("name", KERNELS)
def test_forward_and_backward_forms_are_those_of_the_reference(name, kind):
    inputs = [tensor.requires_grad_() for tensor in tensors(key_heads=2 if kind == "grouped" else None)]
    mask = additive_mask().requires_grad_() if kind == "mask" and KERNELS[name][1] else None
    scale = 0.3 if kind == "scale" else None
    settings = {"mask": mask, "dropout": 0.0, "causal": kind == "causal", "scale": scale}
    results = run_forward(name, inputs, **settings)
    assert len(results) == len(KERNELS[name][0].default._schema.returns)
    expected = sdpa_math(*inputs, mask, is_causal=kind == "causal", scale=scale, enable_gqa=kind == "grouped")
    torch.testing.assert_close(results[0], expected, rtol=0, atol=0)
    check_backward(name, inputs, results, expected, settings)


@pytest.mark.parametrize("name", KERNELS)
def test_backward_drops_what_forward_dropped(name):
    inputs = [tensor.requires_grad_() for tensor in tensors(length=40, keys=40)]
    settings = {"mask": None, "dropout": 0.5, "causal": False, "scale": None}
    results = run_forward(name, inputs, **settings)
    check_backward(name, inputs, results, results[0], settings)
    torch.testing.assert_close(run_forward(name, inputs, **settings)[0], results[0], rtol=0, atol=0)
    assert not torch.allclose(results[0], sdpa_math(*inputs), atol=0.1)
    with torch.no_grad():  # with all values 1 an output is the sum of the kept weights
        ones = run_forward(name, [*inputs[:2], torch.ones_like(inputs[2])], **settings)[0]
    assert 0.9 < ones.mean() < 1.1


@pytest.mark.parametrize("name", KERNELS)
def test_metadata_is_what_the_meta_kernel_says(name):
    """Shapes, dtypes and layouts of a half-precision call; logsumexp comes in the dtype of the computation."""
    inputs = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors(dtype=torch.bfloat16)]
    given, options = forward_arguments(name, *inputs)
    as_meta = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in given]
    expected = KERNELS[name][0].default(*as_meta, **options)
    for mine, meta in zip(run_forward(name, inputs), expected, strict=True):
        if isinstance(meta, torch.Tensor):
            assert (mine.shape, mine.stride(), mine.dtype) == (meta.shape, meta.stride(), meta.dtype)
        else:
            assert mine == meta


def test_logsumexp():
    query, key, value = tensors()
    mask = additive_mask()
    mask[3] = -math.inf
    results = {name: run_forward(name, (query, key, value), mask=mask)[1] for name in KERNELS if name != "flash"}
    scores = query @ key.transpose(-2, -1) / math.sqrt(8) + mask
    expected = scores.logsumexp(-1).masked_fill(scores.logsumexp(-1) == -math.inf, math.inf)
    torch.testing.assert_close(results["overrideable"], expected, **CLOSE)
    torch.testing.assert_close(results["cudnn"], expected.unsqueeze(-1), **CLOSE)
    padded = results["efficient"]
    assert padded.shape == (2, 4, 32)
    torch.testing.assert_close(padded[..., :5], expected, **CLOSE)
    assert (padded[..., 5:] == math.inf).all()
    unpadded = fused_attention.find_stand_in(KERNELS["efficient"][0].default)(query, key, value, mask, False)[1]
    assert unpadded.shape == (2, 4, 0)


def test_other_operators_have_no_stand_in():
    for kernel in (ATEN.bmm.default, ATEN._scaled_dot_product_flash_attention.quantized, torch.matmul, "name"):
        assert fused_attention.find_stand_in(kernel) is None


# -- replay -----------------------------------------------------------------------------------------


def graph_of(name, *, scale=None):
    """A graph that scales the query by 2 and calls a GPU kernel on half inputs."""
    graph = fx.Graph()
    inputs = [graph.placeholder(letter) for letter in "qkv"]
    doubled = graph.call_function(ATEN.mul.Tensor, (inputs[0], 2.0))
    given, options = forward_arguments(name, doubled, *inputs[1:], scale=scale)
    called = graph.call_function(KERNELS[name][0].default, given, options)
    graph.output((graph.call_function(operator.getitem, (called, 0)),))
    return Snapshot(graph, {}, {})


@pytest.mark.parametrize("name", KERNELS)
def test_graphs_that_name_gpu_kernels_are_replayed_in_float64(name):
    inputs = tensors(dtype=torch.bfloat16)
    run = replay_graph(graph_of(name), inputs, double=True)
    assert run.error is None
    query, key, value = (tensor.double() for tensor in inputs)
    torch.testing.assert_close(run.outputs[0], sdpa_math(2.0 * query, key, value), rtol=0, atol=0)
    other = replay_graph(graph_of(name, scale=0.3), inputs, double=True)
    assert (other.outputs[0] - run.outputs[0]).abs().max() > 1e-2


def test_a_kernel_that_computes_in_float64_is_left_to_it():
    query, key, value = tensors(dtype=torch.float32)
    with Float64Mode(keep_casts=False):
        found = CPU(query, key, value)[0]
    torch.testing.assert_close(found, CPU(query.double(), key.double(), value.double())[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_programs_that_call_gpu_kernels_are_differentiated_in_float64(name):
    """As the reference run of a program has it: autograd calls the backward form with the forward form's results."""
    inputs = [tensor.requires_grad_() for tensor in tensors()]
    mask = additive_mask() if KERNELS[name][1] else None
    given, options = forward_arguments(name, *inputs, mask=mask)
    with Float64Mode(keep_casts=False):
        output = KERNELS[name][0].default(*given, **options)[0]
        (output * 2).sum().backward()
    expected = torch.autograd.grad(2 * sdpa_math(*inputs, mask).sum(), inputs)
    for tensor, gradient in zip(inputs, expected, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, **CLOSE)
