"""Attention written in the ways that people write it.

A unit draws what is particular to its form; projection, layout and near misses are drawn for all
forms alike (`fuzzcompile.generation.strategy`).
"""

from __future__ import annotations

from fuzzcompile.generation.drawing import Draw, chance, weighted
from fuzzcompile.generation.registry import attention_idiom
from fuzzcompile.generation.spec import Attention, Mask


@attention_idiom(weight=30)
def attention_mul(draw: Draw) -> Attention:
    """softmax(q @ kᵀ * s) @ v: SDPA patterns 2 and 4, with heads permuted 28."""
    return Attention("attention_mul")


@attention_idiom(weight=30)
def attention_div(draw: Draw) -> Attention:
    """softmax(q @ kᵀ / s) @ v: SDPA patterns 1 and 3, with heads permuted 11 and 12."""
    return Attention("attention_div")


@attention_idiom(weight=20)
def attention_masked(draw: Draw) -> Attention:
    """softmax(q @ kᵀ / s + mask) @ v: SDPA patterns 5 and 6, with heads permuted 14 and 16."""
    return Attention("attention_masked", mask=_mask(draw))


@attention_idiom(weight=20)
def attention_sdpa(draw: Draw) -> Attention:
    """F.scaled_dot_product_attention, plain, causal, or with a mask."""
    kind = weighted(draw, [("plain", 4), ("causal", 3), ("mask", 3)])
    if kind == "plain":
        return Attention("attention_sdpa")
    if kind == "causal":
        return Attention("attention_sdpa", is_causal=True)
    mask = _mask(draw)
    return Attention("attention_sdpa", mask=Mask(mask.causal, mask.shape, "bool" if mask.causal else "model"))


def _mask(draw: Draw) -> Mask:
    """A mask as attention code has it: a bias, a causal triangle, or one entry per key."""
    if chance(draw, 40):
        return Mask(causal=True)
    return Mask(shape="key" if chance(draw, 40) else "square")
