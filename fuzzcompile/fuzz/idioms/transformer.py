"""The idioms of transformers: rows of ``parts.toml``, and attentions that draw more than the choices of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fuzzcompile.fuzz.generation.spec import Attention, Dims, Mask, MaskKind, Pen, Returns
from fuzzcompile.fuzz.idioms.registry import DrawAttention, read_idiom, register
from fuzzcompile.model.package_files import read_table

_MASK_KINDS: tuple[tuple[MaskKind, int], ...] = (
    ("bias", 30), ("causal", 30), ("padding", 12), ("window", 8), ("alibi", 8), ("prefix", 6), ("documents", 6),
)  # fmt: skip


def _draw_mask(pen: Pen) -> Mask:
    kind = pen.draw_weighted(_MASK_KINDS)
    inside = pen.chance(30) and kind != "bias"
    key = pen.chance(40)
    if kind == "padding" or (kind == "bias" and key):
        return Mask(kind, "key", inside=inside)
    return Mask(kind, "heads" if kind == "alibi" else "square", inside=inside)


def _draw_masked(pen: Pen) -> Attention:
    mask = _draw_mask(pen)
    wide = pen.chance(20) and mask.kind != "alibi"
    return Attention("attention_masked", mask=replace(mask, dtype="float32") if wide else mask)


def _draw_sdpa(pen: Pen) -> Attention:
    kind = pen.draw_weighted([("plain", 4), ("causal", 3), ("mask", 3)])
    scaled = pen.chance(25)
    attention = Attention("attention_sdpa", is_causal=kind == "causal", form=(("scaled", scaled), ("math", False)))
    if kind != "mask":
        return attention
    mask = _draw_mask(pen)
    dtype = "bool" if mask.kind in ("causal", "window", "padding", "documents", "prefix") else "model"
    return Attention("attention_sdpa", mask=Mask(mask.kind, mask.shape, dtype, inside=mask.inside), form=attention.form)


def _draw_sdpa_math(pen: Pen) -> Attention:
    mask = _draw_mask(pen) if pen.chance(50) else None
    return Attention("attention_sdpa_math", mask=mask, form=(("scaled", False), ("math", True)))


def _draw_where(pen: Pen) -> Attention:
    biased = pen.chance(50)
    mask = Mask(pen.one_of(("causal", "padding")), dtype="bool", use="keep")
    if mask.kind == "padding":
        mask = Mask("padding", "key", "bool", "keep")
    return Attention("attention_where", mask=mask, returns="" if biased else "keys", form=(("biased", biased),))


def _draw_unscaled(pen: Pen) -> Attention:
    rounded = pen.chance(50)
    masked, key = pen.chance(60), pen.chance(50)
    # Scores that are rounded to the model's dtype come from a mask that is wider.
    dtype = "float32" if pen.chance(70 if rounded else 20) else "model"
    mask = Mask(shape="key" if key else "square", dtype=dtype) if masked else None
    returns: Returns = "keys" if pen.chance(60) else ""
    return Attention("attention_unscaled", mask=mask, returns=returns, form=(("rounded", rounded),))


_DRAWN: dict[str, DrawAttention] = {
    "attention_masked": _draw_masked,
    "attention_sdpa": _draw_sdpa,
    "attention_sdpa_math": _draw_sdpa_math,
    "attention_safe": lambda pen: Attention("attention_safe", mask=Mask() if pen.chance(50) else None),
    "attention_where": _draw_where,
    "attention_unscaled": _draw_unscaled,
    "attention_heads_folded": lambda pen: Attention(
        "attention_heads_folded", mask=Mask(dtype="float32" if pen.chance(60) else "model")
    ),
}


def _make_key_mask_input(attention: Attention, dims: Dims) -> dict[str, str]:
    return {"keys": f"(torch.arange({dims.keys}) * 4 < {dims.keys} * 3 + 1).long().repeat({dims.batch}, 1)"}


def _make_bias_input(attention: Attention, dims: Dims) -> dict[str, str]:
    return {"bias": f"torch.randn(1, 1, {dims.sequence}, {dims.keys})"} if attention.chosen.get("biased") else {}


_INPUTS: dict[str, Callable[[Attention, Dims], Mapping[str, str]]] = {
    "attention_keys_filled": _make_key_mask_input,
    "attention_where": _make_bias_input,
}

for _name, _row in read_table(__package__, "parts").items():
    _idiom = read_idiom(_name, _row)
    if _name in _INPUTS:
        _idiom = replace(_idiom, attention=replace(_idiom.attention, inputs=_INPUTS[_name]))
    register(replace(_idiom, drawn=_DRAWN.get(_name)))
