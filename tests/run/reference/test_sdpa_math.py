"""The attention reference against torch's MATH backend: the same bits in every combination."""

from __future__ import annotations

import itertools

import pytest
import torch
from attention_math import sdpa_math
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MASKS = ("none", "causal", "boolean", "masked rows", "additive", "one key alone")
# Shapes of query, key and value.
FORMS = {
    "plain": ((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)),
    "lengths": ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 6)),
    "3-d": ((3, 5, 8), (3, 7, 8), (3, 7, 4)),
    "5-d": ((2, 2, 3, 4, 8), (2, 2, 3, 6, 8), (2, 2, 3, 6, 8)),
    "grouped": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
    "one key head": ((2, 4, 5, 8), (2, 1, 5, 8), (2, 1, 5, 8)),
}
SCALES = (None, 0.3, -1.7)
MATRIX = [
    pytest.param(*combination, id="-".join(str(part).removeprefix("torch.") for part in combination))
    for combination in itertools.product(FORMS, MASKS, DTYPES, SCALES, (0.0, 0.25))
]


def drawn(*shape, dtype, generator, strided):
    """Normal values; ``strided``: laid out as after ``view(batch, length, heads, width).transpose(-3, -2)``."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return values.transpose(-3, -2).contiguous().transpose(-3, -2) if strided else values


def mask_for(kind, length, keys, dtype, generator):
    if kind in ("none", "causal"):
        return None
    if kind == "additive":
        return torch.randn(length, keys, generator=generator, dtype=torch.float64).to(dtype)
    mask = torch.rand(length, keys, generator=generator) > 0.4
    mask[:, 0] = True
    if kind == "masked rows":
        mask[1] = False
    if kind == "one key alone":
        mask[:] = False
        mask[:, -1] = True
    return mask


def arguments(form, kind, dtype, *, strided=False):
    generator = torch.Generator().manual_seed(5)
    query, key, value = (drawn(*shape, dtype=dtype, generator=generator, strided=strided) for shape in FORMS[form])
    mask = mask_for(kind, query.size(-2), key.size(-2), dtype, generator)
    options = {"is_causal": kind == "causal", "enable_gqa": form in ("grouped", "one key head")}
    return (query, key, value, mask), options


def both(given, options):
    """Reference and MATH backend on the same random numbers."""
    torch.manual_seed(7)
    ours = sdpa_math(*given[:3], attn_mask=given[3], **options)
    torch.manual_seed(7)
    with sdpa_kernel(SDPBackend.MATH):
        theirs = scaled_dot_product_attention(*given[:3], attn_mask=given[3], **options)
    return ours, theirs


def equal(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert ours.stride() == theirs.stride()


@pytest.mark.parametrize(("form", "kind", "dtype", "scale", "dropout"), MATRIX)
def test_same_bits_as_the_math_backend(form, kind, dtype, scale, dropout):
    given, options = arguments(form, kind, dtype)
    ours, theirs = both(given, {**options, "scale": scale, "dropout_p": dropout})
    equal(ours, theirs)
    assert not ours.isnan().any()


def test_the_matrix_is_large_and_tells_settings_apart():
    assert len(MATRIX) >= 200
    given, _ = arguments("lengths", "none", torch.float32)
    plain = sdpa_math(*given[:3])
    for change in ({"scale": 0.3}, {"scale": -1.7}, {"is_causal": True}, {"dropout_p": 0.25}):
        assert not torch.equal(sdpa_math(*given[:3], **change), plain)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_non_contiguous_inputs(form, dtype):
    equal(*both(*arguments(form, "boolean", dtype, strided=True)))


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["lengths", "grouped"])
def test_gradients_have_the_same_bits(form, dtype, kind):
    given, options = arguments(form, kind, dtype)
    given = [t.requires_grad_() if t is not None and t.is_floating_point() else t for t in given]
    leaves = [t for t in given if t is not None and t.requires_grad]
    ours, theirs = both(given, {**options, "dropout_p": 0.25})
    tangent = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    for mine, other in zip(
        torch.autograd.grad(ours, leaves, tangent), torch.autograd.grad(theirs, leaves, tangent), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7)])
def test_wider_and_broadcast_masks(shape, dtype):
    generator = torch.Generator().manual_seed(3)
    query = drawn(2, 3, 5, 8, dtype=dtype, generator=generator, strided=False)
    key = drawn(2, 3, 7, 8, dtype=dtype, generator=generator, strided=False)
    mask = torch.randn(shape, generator=generator)  # float32 beside half inputs, as autocast leaves it
    equal(*both((query, key, key, mask), {}))


def test_reductions_in_half_precision_follow_the_setting():
    given, options = arguments("plain", "additive", torch.bfloat16)
    raised, _ = both(given, options)
    allowed = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        ours, theirs = both(given, options)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
    equal(ours, theirs)
    assert not torch.equal(ours, raised)


def test_large_scores_do_not_overflow_in_half_precision():
    query = torch.full((1, 1, 2, 64), 90.0, dtype=torch.float16)
    ours, theirs = both((query, query, query, None), {"scale": 1.0})
    equal(ours, theirs)
    assert ours.isfinite().all()


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((2, 2, 4), (2, 2, 4)), {"is_causal": True, "attn_mask": torch.ones(2, 2, dtype=torch.bool)}),
        (((1, 5, 2, 4), (1, 2, 2, 4)), {"enable_gqa": True}),
    ],
)
def test_what_makes_no_sense_is_refused_as_torch_refuses_it(shapes, options):
    query, key = (torch.randn(shape) for shape in shapes)
    with pytest.raises(ValueError, match=r"exclude each other|no multiple"):
        sdpa_math(query, key, key, **options)
    with pytest.raises(RuntimeError), sdpa_kernel(SDPBackend.MATH):
        scaled_dot_product_attention(query, key, key, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "keys", "width"), [(130, 130, 64), (1, 257, 80), (33, 1, 128), (64, 64, 3)])
def test_sizes_of_real_programs(length, keys, width, dtype):
    generator = torch.Generator().manual_seed(8)
    query = drawn(2, 4, length, width, dtype=dtype, generator=generator, strided=True)
    key, value = (drawn(2, 4, keys, width, dtype=dtype, generator=generator, strided=True) for _ in range(2))
    equal(*both((query, key, value, None), {"is_causal": length == keys, "dropout_p": 0.1}))
