"""The PrefixLM reference against softmax by hand, SDPA with a mask, autograd and gradcheck; mistakes it must show."""

from __future__ import annotations

import math

import pytest
import torch
from _attention_variants import prefix_lm, prefix_lm_gradients, prefix_lm_mask
from torch.nn.functional import scaled_dot_product_attention

# Offsets and prefixes: no prefix, all of it, longer than the sequence, one token, no token, a single sequence.
PACKINGS = {
    "ragged": ([0, 5, 6, 6, 13, 17], [2, 0, 3, 7, 9]),
    "causal": ([0, 4, 9], [0, 0]),
    "bidirectional": ([0, 4, 9], [4, 5]),
    "alone": ([0, 7], [3]),
}
# Heads of the query, and of key and value.
GROUPS = {"plain": (2, 2), "grouped": (6, 2), "one key head": (4, 1)}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def tensors(packing="ragged", group="plain", dtype=torch.float64, width=8, value_width=6):
    generator = torch.Generator().manual_seed(4)
    heads, key_heads = GROUPS[group]
    tokens = PACKINGS[packing][0][-1]
    shapes = (tokens, heads, width), (tokens, key_heads, width), (tokens, key_heads, value_width)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def by_hand(query, key, value, offsets, prefixes, scale=None):
    """One query, one head and one key at a time."""
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    group = query.size(1) // key.size(1)
    rows = []
    for start, end, prefix in zip(offsets[:-1], offsets[1:], prefixes, strict=True):
        for i in range(start, end):
            seen = [j for j in range(start, end) if j - start < prefix or j <= i]
            for head in range(query.size(1)):
                scores = torch.stack([scale * (query[i, head] * key[j, head // group]).sum() for j in seen])
                powers = (scores - scores.max()).exp()
                parts = [power * value[j, head // group] for power, j in zip(powers, seen, strict=True)]
                rows.append(sum(parts) / powers.sum())
    return torch.stack(rows).view(query.size(0), query.size(1), -1)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_float64_agrees_with_softmax_by_hand(packing, group):
    given = tensors(packing, group)
    for scale in (None, -0.7):
        expected = by_hand(*given, *PACKINGS[packing], scale)
        torch.testing.assert_close(prefix_lm(*given, *PACKINGS[packing], scale=scale), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_sdpa_with_the_whole_mask_agrees(packing, group):
    given = tensors(packing, group)
    mask = prefix_lm_mask(*PACKINGS[packing])
    heads_first = [tensor.transpose(0, 1).unsqueeze(0) for tensor in given]
    dense = scaled_dot_product_attention(*heads_first, attn_mask=mask, enable_gqa=True).squeeze(0).transpose(0, 1)
    torch.testing.assert_close(prefix_lm(*given, *PACKINGS[packing]), dense, rtol=0, atol=1e-14)


def test_the_mask_says_who_sees_whom():
    mask = prefix_lm_mask(torch.tensor([0, 3, 5]), torch.tensor([2, 0]))
    rows = ["11000", "11000", "11100", "00010", "00011"]
    assert ["".join(str(int(seen)) for seen in row) for row in mask] == rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packing", PACKINGS)
def test_every_dtype_is_right_to_its_own_rounding(packing, dtype):
    narrow = tensors(packing, "grouped", dtype)
    ours = prefix_lm(*narrow, *PACKINGS[packing])
    exact = by_hand(*(tensor.double() for tensor in narrow), *PACKINGS[packing])
    assert ours.dtype == dtype
    # Half precision is rounded once; float32 and float64 at every step.
    ulps = 0.5 if dtype in (torch.bfloat16, torch.float16) else 8
    bound = ulps * torch.finfo(dtype).eps * exact.abs().clamp_min(1.0) + 1e-6 * (ulps < 1)
    assert ((ours.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_the_formulas_of_the_gradients_agree_with_autograd(packing, group):
    given = [tensor.requires_grad_() for tensor in tensors(packing, group)]
    output = prefix_lm(*given, *PACKINGS[packing], scale=0.4)
    tangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    by_formula = prefix_lm_gradients(tangent, *(t.detach() for t in given), *PACKINGS[packing], scale=0.4)
    for ours, expected in zip(by_formula, torch.autograd.grad(output, given, tangent), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-13)


class ByFormula(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, offsets, prefixes):
        ctx.save_for_backward(query, key, value)
        ctx.packing = offsets, prefixes
        return prefix_lm(query, key, value, offsets, prefixes)

    @staticmethod
    def backward(ctx, grad):
        return *prefix_lm_gradients(grad, *ctx.saved_tensors, *ctx.packing), None, None


@pytest.mark.parametrize("attention", [prefix_lm, ByFormula.apply], ids=["autograd", "formulas"])
def test_gradients_agree_with_finite_differences(attention):
    generator = torch.Generator().manual_seed(2)
    shapes = (6, 2, 3), (6, 1, 3), (6, 1, 2)
    given = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, [0, 4, 6], [2, 1]), given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_come_in_the_dtype_of_their_tensor(dtype):
    given = tensors("ragged", "grouped", dtype)
    tangent = torch.ones(17, 6, 6, dtype=dtype)
    narrow = prefix_lm_gradients(tangent, *given, *PACKINGS["ragged"])
    exact = prefix_lm_gradients(tangent.double(), *(t.double() for t in given), *PACKINGS["ragged"])
    for ours, expected, like in zip(narrow, exact, given, strict=True):
        assert (ours.dtype, ours.shape) == (dtype, like.shape)
        scale = float(expected.abs().max())
        assert (ours.double() - expected).abs().max() <= max(torch.finfo(dtype).eps, 1e-6) * scale


# -- what a wrong mask costs: far beyond any rounding -----------------------------------------------


def prefix_too_short(length, prefix):
    position = torch.arange(length)
    return (position < prefix - 1) | (position <= position[:, None])


def causal_off_by_one(length, prefix):
    position = torch.arange(length)
    return (position < prefix) | (position < position[:, None]) | (position == 0)


def prefix_blind_to_what_follows_in_it(length, prefix):
    position = torch.arange(length)
    return position <= position[:, None]


def prefix_counted_in_the_pack(length, prefix, start=5):
    position = torch.arange(length)
    return (position < prefix - start) | (position <= position[:, None])


@pytest.mark.parametrize(
    "sees",
    [prefix_too_short, causal_off_by_one, prefix_blind_to_what_follows_in_it, prefix_counted_in_the_pack],
    ids=lambda sees: sees.__name__,
)
def test_a_wrong_mask_shows(sees):
    query, key, value = tensors("ragged", dtype=torch.float32)
    reference = prefix_lm(query, key, value, *PACKINGS["ragged"])
    outputs = []
    offsets, prefixes = PACKINGS["ragged"]
    for start, end, prefix in zip(offsets[:-1], offsets[1:], prefixes, strict=True):
        parts = [tensor[start:end].transpose(0, 1) for tensor in (query, key, value)]
        outputs.append(scaled_dot_product_attention(*parts, attn_mask=sees(end - start, prefix)).transpose(0, 1))
    assert (torch.cat(outputs) - reference).abs().max() > 1e-2


def test_a_gradient_without_its_row_sums_shows():
    given = tensors("alone")
    tangent = torch.ones(7, 2, 6, dtype=torch.float64)
    wrong = torch.zeros_like(given[0])
    mask = prefix_lm_mask(*PACKINGS["alone"])
    for head in range(2):
        q, k, v = (tensor[:, head] for tensor in given)
        weights = (q @ k.T / math.sqrt(8)).masked_fill(~mask, -math.inf).softmax(-1)
        wrong[:, head] = weights * (tangent[:, head] @ v.T) @ k / math.sqrt(8)
    right = prefix_lm_gradients(tangent, *given, *PACKINGS["alone"])[0]
    assert (wrong - right).abs().max() > 1e-2


# -- what makes no sense ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "prefixes", "message"),
    [
        ([0, 5], [2], "end with the number of tokens, 7"),
        ([1, 7], [2], "begin with 0"),
        ([0, 5, 4, 7], [1, 1, 1], "do not decrease"),
        ([0, 7], [1, 1], "1 sequences need as many prefixes"),
        ([0, 7], [-1], "none negative"),
    ],
)
def test_a_packing_that_makes_no_sense_is_refused(offsets, prefixes, message):
    with pytest.raises(ValueError, match=message):
        prefix_lm(*tensors("alone"), offsets, prefixes)


def test_heads_that_do_not_divide_are_refused():
    query, key = torch.randn(7, 3, 8), torch.randn(7, 2, 8)
    with pytest.raises(ValueError, match="3 heads of the query are no multiple of 2"):
        prefix_lm(query, key, key, *PACKINGS["alone"])


def test_no_tokens_at_all():
    empty = torch.randn(0, 2, 8)
    assert prefix_lm(empty, empty, empty, [0, 0], [3]).shape == (0, 2, 8)
    assert prefix_lm_mask([0], []).shape == (0, 0)
