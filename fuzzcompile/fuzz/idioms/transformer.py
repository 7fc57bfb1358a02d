"""The idioms of transformers: attention as models write it, and the parts beside it in ``parts.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import resources

from fuzzcompile.fuzz.generation.spec import Attention, Dims, Mask, MaskKind, Pen, Returns
from fuzzcompile.fuzz.idioms.registry import AttentionTraits, attention_idiom, read_part_idiom, register

_SDPA = AttentionTraits(
    plain=2,
    has_scores=False,
    scale="factor",
    scale_takes="number",
    softcap=False,
    sink=False,
    softmax_axis=False,
    key_permuted=False,
    leading=True,
)


@attention_idiom(30, AttentionTraits(plain=10, scale="factor", scale_takes="tensor", leading=True))
def attention_mul(pen: Pen) -> Attention:
    """softmax(q @ kᵀ * s) @ v: SDPA patterns 2 and 4, with heads permuted 28."""
    return Attention("attention_mul")


@attention_idiom(30, AttentionTraits(plain=12, scale_takes="tensor", leading=True))
def attention_div(pen: Pen) -> Attention:
    """softmax(q @ kᵀ / s) @ v: SDPA patterns 1 and 3, with heads permuted 11 and 12."""
    return Attention("attention_div")


@attention_idiom(
    25,
    AttentionTraits(
        plain=26, scale_takes="tensor", leading=True, mask_dtypes=("model", "float32"), widens_plain_mask=True
    ),
)
def attention_masked(pen: Pen) -> Attention:
    """softmax(q @ kᵀ / s + mask) @ v, a mask of float32 at times: SDPA patterns 5, 6, with heads permuted 14, 16."""
    mask = _draw_mask(pen)
    wide = pen.chance(20) and mask.kind != "alibi"
    return Attention("attention_masked", mask=replace(mask, dtype="float32") if wide else mask)


@attention_idiom(25, _SDPA)
def attention_sdpa(pen: Pen) -> Attention:
    """F.scaled_dot_product_attention with each of its arguments: plain, causal, a mask, a scale of its own."""
    kind = pen.draw_weighted([("plain", 4), ("causal", 3), ("mask", 3)])
    scaled = pen.chance(25)
    attention = Attention("attention_sdpa", is_causal=kind == "causal", form=(("scaled", scaled), ("math", False)))
    if kind != "mask":
        return attention
    mask = _draw_mask(pen)
    dtype = "bool" if mask.kind in ("causal", "window", "padding", "documents", "prefix") else "model"
    return Attention("attention_sdpa", mask=Mask(mask.kind, mask.shape, dtype, inside=mask.inside), form=attention.form)


@attention_idiom(15, replace(_SDPA, plain=9, layouts=("heads_last",), scale_takes="usual", leading=False))
def attention_sdpa_math(pen: Pen) -> Attention:
    """F.scaled_dot_product_attention under the MATH backend, which is decomposed: SDPA patterns 29 and 30."""
    mask = _draw_mask(pen) if pen.chance(50) else None
    return Attention("attention_sdpa_math", mask=mask, form=(("scaled", False), ("math", True)))


@attention_idiom(20, AttentionTraits(plain=10, layouts=("heads_last",), scale="of_each"))
def attention_safe(pen: Pen) -> Attention:
    """SDPA's own maths written out, scale split between query and key, safe softmax: SDPA patterns 29 and 30."""
    return Attention("attention_safe", mask=Mask() if pen.chance(50) else None)


@attention_idiom(25, AttentionTraits(plain=11, layouts=("heads_last",), scale_takes="tensor"))
def attention_upcast(pen: Pen) -> Attention:
    """Scores divided, softmax in float32, weights cast back or down to float16: SDPA patterns 7 and 8."""
    return Attention("attention_upcast", form=(("narrow", pen.chance(50)),))


@attention_idiom(25, AttentionTraits(plain=11, layouts=("heads_last",), scale_takes="tensor"))
def attention_query_scaled(pen: Pen) -> Attention:
    """The query divided before the product, softmax in float32: SDPA patterns 9 and 10."""
    return Attention("attention_query_scaled", form=(("narrow", pen.chance(50)),))


@attention_idiom(15, AttentionTraits(plain=3, layouts=("flat",)))
def attention_bmm(pen: Pen) -> Attention:
    """bmm(dropout(softmax(bmm(q, kᵀ))), v) over three dimensions and without a scale: SDPA pattern 13."""
    return Attention("attention_bmm")


def _make_key_mask_input(attention: Attention, dims: Dims) -> dict[str, str]:
    return {"keys": f"(torch.arange({dims.keys}) * 4 < {dims.keys} * 3 + 1).long().repeat({dims.batch}, 1)"}


@attention_idiom(
    20,
    AttentionTraits(
        plain=11,
        layouts=("heads_last",),
        scale_takes="tensor",
        softcap=False,
        hides_keys=True,
        own_mask=True,
        inputs=_make_key_mask_input,
    ),
)
def attention_keys_filled(pen: Pen) -> Attention:
    """A (B, S) mask of ones and zeros, viewed, expanded and filled with −inf: SDPA patterns 15, 17 and 20."""
    return Attention("attention_keys_filled", form=(("early", pen.chance(50)),))


def _make_bias_input(attention: Attention, dims: Dims) -> dict[str, str]:
    return {"bias": f"torch.randn(1, 1, {dims.sequence}, {dims.keys})"} if attention.chosen.get("biased") else {}


@attention_idiom(
    25,
    AttentionTraits(
        plain=18, layouts=("heads_last", "heads_first"), own_mask=True, mask_dtypes=("bool",), inputs=_make_bias_input
    ),
)
def attention_where(pen: Pen) -> Attention:
    """where(mask, scores / full(s), finfo.min), with an additive mask as well or keys returned: patterns 18 and 19."""
    biased = pen.chance(50)
    mask = Mask(pen.one_of(("causal", "padding")), dtype="bool", use="keep")
    if mask.kind == "padding":
        mask = Mask("padding", "key", "bool", "keep")
    return Attention("attention_where", mask=mask, returns="" if biased else "keys", form=(("biased", biased),))


@attention_idiom(60, AttentionTraits(plain=40, layouts=("heads_last",), mask_dtypes=("model", "float32")))
def attention_unscaled(pen: Pen) -> Attention:
    """No scale, softmax in float32, keys and values returned for a cache or not: SDPA patterns 21 to 23, 25 to 27."""
    rounded = pen.chance(50)
    masked, key = pen.chance(60), pen.chance(50)
    # Scores that are rounded to the model's dtype come from a mask that is wider.
    dtype = "float32" if pen.chance(70 if rounded else 20) else "model"
    mask = Mask(shape="key" if key else "square", dtype=dtype) if masked else None
    returns: Returns = "keys" if pen.chance(60) else ""
    return Attention("attention_unscaled", mask=mask, returns=returns, form=(("rounded", rounded),))


@attention_idiom(
    15,
    AttentionTraits(
        plain=4,
        layouts=("heads_first",),
        softcap=False,
        sink=False,
        softmax_axis=False,
        key_permuted=False,
        shared_heads=False,
        empty=False,
        own_mask=True,
        mask_dtypes=("model", "float32"),
    ),
)
def attention_heads_folded(pen: Pen) -> Attention:
    """Heads folded into the batch for bmm, unfolded for an additive mask: SDPA pattern 24."""
    return Attention("attention_heads_folded", mask=Mask(dtype="float32" if pen.chance(60) else "model"))


_MASK_KINDS: tuple[tuple[MaskKind, int], ...] = (
    ("bias", 30), ("causal", 30), ("padding", 12), ("window", 8), ("alibi", 8), ("prefix", 6), ("documents", 6),
)  # fmt: skip


def _draw_mask(pen: Pen) -> Mask:
    """A mask as models use it: a bias, a causal triangle or window, one entry per key, distances."""
    kind = pen.draw_weighted(_MASK_KINDS)
    inside = pen.chance(30) and kind != "bias"
    key = pen.chance(40)
    if kind == "padding" or (kind == "bias" and key):
        return Mask(kind, "key", inside=inside)
    return Mask(kind, "heads" if kind == "alibi" else "square", inside=inside)


for _name, _row in tomllib.loads(resources.files(__package__).joinpath("parts.toml").read_text("utf-8")).items():
    register(read_part_idiom(_name, _row))
